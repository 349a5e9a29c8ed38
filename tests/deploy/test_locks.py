"""The locks: images and releases hold the packages that they name, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deploy.locks.lock import EXTRAS, LOCKS, build_requirements
from tests.deploy.manifests import DEPLOY, ROOT, VARIANTS, manifests
from tests.deploy.test_image import PROJECT

PINNED = re.compile(
    r"^([a-z0-9][a-z0-9-]*)==(\S+?)( ; .*)? \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)
DOCKERFILES = [DEPLOY / "image" / "Dockerfile", DEPLOY / "spark" / "Dockerfile"]


def pinned(name: str) -> dict[str, list[Version]]:
    """The packages of a lock, with a version for each range of Pythons. A line is of one of them, or a comment."""
    text = (LOCKS / name).read_text(encoding="utf-8")
    rest = PINNED.sub("", text)
    assert [line for line in rest.splitlines() if not line.lstrip().startswith("#")] == []
    versions: dict[str, list[Version]] = {}
    markers = set()
    for package, version, marker, _ in PINNED.findall(text):
        assert (package, marker) not in markers, f"{package} has two versions"
        markers.add((package, marker))
        versions.setdefault(package, []).append(Version(version))
    return versions


def asked_for(name: str) -> list[Requirement]:
    """The ranges of pyproject.toml that a lock has to keep."""
    if name == "build.txt":
        return [Requirement(each) for each in build_requirements()]
    project = PROJECT["project"]
    optional = [each for extra in EXTRAS[name] for each in project["optional-dependencies"][extra]]
    return [Requirement(each) for each in project["dependencies"] + optional]


@pytest.mark.parametrize("name", [*EXTRAS, "build.txt"])
def test_a_lock_keeps_the_ranges_of_the_project(name: str) -> None:
    versions = pinned(name)
    for requirement in asked_for(name):
        for version in versions[canonicalize_name(requirement.name)]:
            assert version in requirement.specifier, f"{requirement}, locked {version}: `make lock`"


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_what_is_installed_from_outside_has_a_hash(file: Path) -> None:
    steps = re.sub(r"\\\n", " ", file.read_text(encoding="utf-8")).splitlines()
    installs = [command for step in steps if step.startswith("RUN ") for command in step[4:].split("&&")]
    installs = [command for command in installs if re.search(r"\bpip (install|wheel|download)\b", command)]
    assert len(installs) >= 4
    for command in installs:
        is_locked = "--require-hashes --requirement /src/locks/" in command
        is_built_here = "--no-deps --no-index" in command or "--no-deps --no-build-isolation" in command
        assert is_locked or is_built_here, command


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.parent.name)
def test_images_of_others_are_named_by_their_digest(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE))
    stages = re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE)
    named = re.findall(r"^FROM (\S+)", text, re.MULTILINE) + re.findall(r"--from=(\S+)", text)
    images = [arguments.get(each.strip("${}"), each) for each in named if each not in stages]
    assert images
    assert all(re.fullmatch(r"[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}", image) for image in images), images


@pytest.mark.parametrize("variant", VARIANTS)
def test_so_are_those_in_the_manifests(variant: str) -> None:
    for _, container in manifests(variant).containers():
        own = f"quarry:{PROJECT['project']['version']}"
        assert container["image"] == own or re.search(r"@sha256:[0-9a-f]{64}$", container["image"])


def test_the_native_part_is_built_of_what_its_lock_names() -> None:
    assert "\nlocked = true" in (ROOT / "native" / "pyproject.toml").read_text(encoding="utf-8")
