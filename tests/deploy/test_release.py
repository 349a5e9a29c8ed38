"""`make release`: what it makes is whole, and works where nothing else of Quarry is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.environments import Environment, run
from tests.deploy.manifests import ROOT
from tests.e2e.broker import SMALL_SEGMENTS, Broker

RELEASE: Final = ROOT / "deploy" / "release" / "release.py"
TOOLS: Final = ("cyclonedx_py", "maturin", "ziglang")
ELF_MACHINES: Final = {"x86_64": 62, "aarch64": 183}
"""`e_machine` of the header of an ELF file, at byte 18."""

TIMEOUT_S: Final = 900.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release, without the image, which needs a container runtime."""
    tools = tmp_path_factory.mktemp("tools") / "environment"
    run(sys.executable, "-m", "venv", tools)
    run(tools / "bin" / "pip", "install", "--quiet", *requirements_of("release"), timeout_s=TIMEOUT_S)
    folder = tmp_path_factory.mktemp("release")
    targets = run("rustup", "target", "list", "--installed")
    left_out = ["image", *(f"native-{machine}" for machine in ELF_MACHINES if machine not in targets)]
    words = [word for part in left_out for word in ("--without", part)]
    run(tools / "bin" / "python", RELEASE, "--into", folder, *words, timeout_s=TIMEOUT_S)
    return folder


def requirements_of(extra: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"][extra])


def one(folder: Path, pattern: str) -> Path:
    [found] = folder.glob(pattern)
    return found


def test_every_file_has_its_checksum(release: Path) -> None:
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=release)
    listed = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert listed == {path.name for path in release.iterdir()} - {"SHA256SUMS"}


def test_native_wheels_are_for_the_processor_that_they_name(release: Path) -> None:
    wheels = list(release.glob("quarry_native-*.whl"))
    assert wheels
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            [library] = [name for name in archive.namelist() if name.endswith(".so")]
            machine = int.from_bytes(archive.read(library)[18:20], "little")
            assert any("/sboms/" in name for name in archive.namelist())
        [named] = [name for name in ELF_MACHINES if wheel.stem.endswith(name)]
        assert machine == ELF_MACHINES[named]
        assert "-cp311-abi3-manylinux_2_17_" in wheel.name.replace("manylinux2014_" + named + ".", "")


def test_the_bill_of_materials_names_every_library_of_the_lock(release: Path) -> None:
    lock = one(release, "quarry-*-requirements.txt").read_text()
    locked = {(name, version) for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE)}
    document = json.loads(one(release, "quarry-*.cyclonedx.json").read_text())
    assert {(each["name"], each["version"]) for each in document["components"]} == locked
    assert document["metadata"]["component"]["name"] == "quarry-mq"


def test_the_chart_is_the_one_of_the_repository(release: Path) -> None:
    with tarfile.open(one(release, "quarry-[0-9]*.tgz")) as archive:
        packed = {name.removeprefix("quarry/") for name in archive.getnames()}
    listed = run("git", "ls-files", cwd=ROOT / "deploy" / "helm" / "quarry").split()
    assert packed == set(listed)


@pytest.mark.parametrize("form", ["wheel", "source"])
def test_what_it_made_works_in_an_empty_environment(release: Path, tmp_path: Path, form: str) -> None:
    environment = Environment(tmp_path / "environment")
    requirements = one(release, "quarry-*-requirements.txt")
    run(
        *(sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--python", environment.python),
        *("install", "--quiet", "--require-hashes", "--requirement", requirements),
        timeout_s=TIMEOUT_S,
    )
    quarry = one(release, "quarry_mq-*.whl" if form == "wheel" else "quarry_mq-*.tar.gz")
    native = one(release, "quarry_native-*x86_64.whl")
    environment.pip("install", "--no-deps", quarry, native)
    environment.pip("check")

    logs = tmp_path / "logs"
    broker = Broker(
        tmp_path / "store", logs=logs, environment=SMALL_SEGMENTS, installed=environment.quarry, folder=tmp_path
    )
    broker.start()
    try:
        for words in (
            ("topic", "create", "orders", "--admin", broker.admin),
            ("ping", "--topic", "orders", "--count", "3", "--endpoint", broker.endpoint, "--admin", broker.admin),
        ):
            run(environment.quarry, *words, cwd=tmp_path)
        told = run(environment.python, "-c", "from quarry_mq.store.native import NATIVE; print(NATIVE)", cwd=tmp_path)
        assert "quarry_native" in told
    finally:
        broker.stop()


def test_a_part_that_cannot_be_made_is_named_and_fails_the_release(tmp_path: Path) -> None:
    """Nothing else is made here. A folder without `docker` is the whole path."""
    parts = ("python", "native-x86_64", "native-aarch64", "native-source", "chart", "requirements", "materials")
    git = tmp_path / "bin"
    git.mkdir()
    (git / "git").symlink_to(run("which", "git").strip())
    done = subprocess.run(
        [
            *(sys.executable, RELEASE, "--into", tmp_path / "release"),
            *(word for part in parts for word in ("--without", part)),
        ],
        env={"PATH": str(git)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "missing: image: docker cannot be run" in done.stderr
