"""The image: its Dockerfile agrees with the project, and a broker runs as the image starts it.

No container runtime is needed, and none was asked: the steps of the Dockerfile are run here as far as they are not
about Debian's packages, and the start-up command runs in namespaces of its own (`tests.deploy.container`).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from quarry_mq.cli.demo import free_ports
from quarry_mq.server.settings.broker_settings import load_settings
from tests.deploy.container import command, this_python, why_not
from tests.deploy.manifests import DEPLOY, ROOT, VARIANTS, manifests

DOCKERFILE = (DEPLOY / "image" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
USER = 10_001
READY_TIMEOUT_S = 60.0


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile in their order, lines put together."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for name, rest in dropwhile(lambda each: each[0] == "ARG", instructions()):
        if name == "FROM":
            found.append([])
        found[-1].append((name, rest))
    return found


def base_images() -> dict[str, str]:
    """Return the base images that a build has unless its arguments name others."""
    return dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG")


def said(name: str) -> str:
    """The only instruction of this name in the last stage."""
    (found,) = (rest for each, rest in stages()[-1] if each == name)
    return found


def environment() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(said("ENV")))


def test_the_image_has_what_the_project_asks_for() -> None:
    bases = [rest.split()[0] for name, rest in instructions() if name == "FROM"]
    assert bases == ["${RUST_IMAGE}", "${PYTHON_IMAGE}", "packages", "${PYTHON_IMAGE}"]
    (python,) = re.findall(r"^python:(\d+\.\d+)-slim-", base_images()["PYTHON_IMAGE"])
    assert python in SpecifierSet(PROJECT["project"]["requires-python"])
    assert "/src/locks/broker.txt" in DOCKERFILE
    assert f"--tag quarry:{PROJECT['project']['version']} ." in DOCKERFILE


def test_the_image_is_made_of_all_packages_and_of_nothing_else_than_may_be_sent() -> None:
    copies = [shlex.split(rest) for name, rest in instructions() if name == "COPY"]
    copied = {word for words in copies if not words[0].startswith("--") for word in words[:-1]}
    [package] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    packages = {package, *(each.name for each in (ROOT / package).iterdir() if each.is_symlink())}
    licences = PROJECT["project"]["license-files"]
    own = {"deploy/image/prepare.py", "deploy/image/quarry.toml", "deploy/locks/broker.txt", "deploy/locks/build.txt"}
    assert copied == {"pyproject.toml", PROJECT["project"]["readme"], *licences, *packages, *own, "native"}
    assert all((ROOT / each).exists() for each in copied)
    sent = (DEPLOY / "image" / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in sent if line[0] == "!"} == copied
    assert sent[0] == "*"


def test_the_image_names_the_licence() -> None:
    copies = [shlex.split(rest) for name, rest in stages()[-1] if name == "COPY"]
    assert [*PROJECT["project"]["license-files"], "/licenses/"] in copies


def test_the_broker_is_no_root_and_nothing_but_the_init_stands_before_it() -> None:
    assert said("USER") == f"{USER}:{USER}"
    assert f"--uid {USER} --gid {USER}" in DOCKERFILE
    assert json.loads(said("ENTRYPOINT")) == ["tini", "--", "quarry"]
    assert json.loads(said("CMD")) == ["serve"]
    # a declared volume would hide that none is mounted: container runtimes make one, and forget it with the container
    assert "VOLUME" not in {name for name, _ in instructions()}


def test_the_settings_of_the_image_are_good_and_open_the_ports_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QUARRY_"):
            monkeypatch.delenv(name)
    file = environment()["QUARRY_CONFIG"]
    assert ["deploy/image/quarry.toml", file] in [shlex.split(rest) for _, rest in stages()[-1]]
    settings = load_settings(DEPLOY / "image" / "quarry.toml")
    network = settings.network
    opened = [each.rpartition(":") for each in (network.listen, network.admin, network.http)]
    assert said("EXPOSE").split() == [port for host, _, port in opened if host == "0.0.0.0"]
    assert network.advertise is None
    assert settings.store.directory.is_relative_to(said("WORKDIR"))
    assert f"install --directory --owner {USER} --group {USER} --mode 750 {said('WORKDIR')}" in DOCKERFILE


def test_programs_that_pods_run_are_in_the_image() -> None:
    copied = {shlex.split(rest)[-1] for name, rest in stages()[-1] if name == "COPY"}
    for variant in VARIANTS:
        for _, container in manifests(variant).containers():
            if "command" in container:
                program, *words = container["command"]
                # every base image has a shell
                assert program == "sh" or (program == "python" and words[0] in copied)


# -- a container


@contextmanager
def container(
    words: list[str],
    folder: Path,
    *,
    environment: dict[str, str],
    read_only: dict[str, Path],
    mounts: dict[str, Path] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs until the block ends. The process is the one that made the namespaces; the container's is its child."""
    (folder / "container").mkdir(parents=True)
    line = command(
        words,
        folder=folder / "container",
        user=USER,
        environment=environment,
        mounts=mounts or {},
        read_only=read_only,
    )
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def first_process(outside: subprocess.Popen[bytes]) -> int:
    """Of the container."""
    (child,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
    return int(child)


def ready(http: int, folder: Path, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/readyz", timeout=5) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(f"not ready:\n{(folder / 'output').read_text()[-4000:]}")


def volume(folder: Path) -> Path:
    made = folder / "volume"
    made.mkdir()
    os.chown(made, USER, USER)
    return made


def ports() -> tuple[int, dict[str, str]]:
    """The HTTP port and an environment that has free ones for those of the image, on this machine alone."""
    listen, admin, http = free_ports(3)
    names = {"LISTEN": listen, "ADMIN": admin, "HTTP": http}
    return http, {f"QUARRY_NETWORK_{name}": f"127.0.0.1:{port}" for name, port in names.items()}


def run_as_the_image_does(folder: Path, python: str, read_only: dict[str, Path], *, search_path: str) -> None:
    """With the image's own command, settings and environment."""
    parts = read_only | {"/etc/quarry": DEPLOY / "image"}
    run_and_stop(
        folder,
        [python, "-m", "quarry_mq.cli.main", *json.loads(said("CMD"))],
        environment() | {"PATH": search_path},
        parts,
    )


def run_and_stop(
    folder: Path, words: list[str], given: dict[str, str], parts: dict[str, Path], probes: Sequence[str] = ()
) -> None:
    """Start, ask each probe, stop as a container runtime does, and look at what was written."""
    http, addresses = ports()
    given = given | addresses | {"QUARRY_EXPIRY_REFUSE_PERCENT": "100"}
    store = volume(folder)
    mounts = {str(said("WORKDIR")): store}
    with container(words, folder, environment=given, mounts=mounts, read_only=parts) as outside:
        ready(http, folder, outside)
        for probe in probes:
            with urllib.request.urlopen(f"http://127.0.0.1:{http}{probe}", timeout=5) as answer:
                assert answer.status == 200
        broker = first_process(outside)
        status = Path(f"/proc/{broker}/status").read_text()
        assert re.search(rf"^Uid:\t{USER}\t{USER}", status, flags=re.MULTILINE)
        assert "\nCapEff:\t0000000000000000\n" in status
        assert re.search(r"^NSpid:\t\d+\t1$", status, flags=re.MULTILINE)
        os.kill(broker, signal.SIGTERM)
        assert outside.wait(READY_TIMEOUT_S) == 0
    output = (folder / "output").read_text()
    assert "stopped" in output, output[-4000:]
    assert "Traceback" not in output
    assert [each.name for each in store.iterdir()] == ["store"]
    assert not (store / "store" / "abort").exists()


@pytest.fixture
def _container(tmp_path_factory: pytest.TempPathFactory) -> None:
    reason = why_not(tmp_path_factory.mktemp("trial"))
    if reason:
        pytest.skip(reason)


@pytest.mark.usefixtures("_container")
def test_a_broker_needs_to_write_its_volume_only_and_no_right_at_all(tmp_path: Path) -> None:
    folders = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    run_as_the_image_does(tmp_path, sys.executable, this_python(), search_path=folders)


@pytest.mark.usefixtures("_container")
def test_so_does_the_pod_of_the_chart(tmp_path: Path) -> None:
    """Its arguments, its settings where they are mounted, its environment, and its probes."""
    these = manifests("one-broker")
    settings = tmp_path / "settings"
    settings.mkdir()
    settings.chmod(0o755)
    arguments = these.broker["args"]
    file = Path(arguments[arguments.index("--config") + 1])
    (settings / file.name).write_text(these.toml)
    folders = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    probes = [these.broker[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    given = environment() | these.environment(0) | {"PATH": folders}
    parts = this_python() | {str(file.parent): settings}
    run_and_stop(tmp_path, [sys.executable, "-m", "quarry_mq.cli.main", *arguments], given, parts, probes)


@pytest.mark.usefixtures("_container")
def test_without_a_volume_it_ends_and_says_why(tmp_path: Path) -> None:
    """rocketmq-docker#115: with a root file system that is read-only nothing can be lost in it."""
    _, addresses = ports()
    given = environment() | addresses
    parts = this_python() | {"/etc/quarry": DEPLOY / "image", str(said("WORKDIR")): volume(tmp_path)}
    words = [sys.executable, "-m", "quarry_mq.cli.main", "serve"]
    with container(words, tmp_path, environment=given, read_only=parts) as outside:
        assert outside.wait(READY_TIMEOUT_S) == 2
    assert "/var/lib/quarry/store" in (tmp_path / "output").read_text()
    assert "Read-only file system" in (tmp_path / "output").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_container")
def test_what_the_dockerfile_installs_runs(tmp_path: Path) -> None:
    """Its first stages, step by step, from nothing but what is sent to the builder; by this Python, not the image's.

    The native part is built by this machine's own compiler, where there is one.
    """
    has_compiler = shutil.which("cargo") is not None
    native, *others = stages()[:-1]
    for name, rest in [step for stage in ([native] if has_compiler else []) + others for step in stage]:
        line = re.sub(r"(?<![\w.])/(src|opt)\b", rf"{tmp_path}/\1", rest)
        words = shlex.split(line)
        match name:
            case "COPY" if not words[0].startswith("--from="):
                *sources, target = words
                for source in sources:
                    if (ROOT / source).is_dir():
                        ignored = shutil.ignore_patterns("__pycache__", "target")
                        shutil.copytree(ROOT / source, target, symlinks=True, ignore=ignored)
                    else:
                        Path(target).mkdir(parents=True, exist_ok=True)
                        shutil.copy2(ROOT / source, target)
            case "RUN" if words[0] != "apt-get":
                line = re.sub(r"\bpython3? -m venv", f"{sys.executable} -m venv", line)
                line = line if has_compiler else line.removesuffix("quarry-native")
                subprocess.run(line, shell=True, check=True, timeout=600, stdout=subprocess.DEVNULL)
    installed = tmp_path / "opt" / "quarry"
    for part in ("packages", "build"):
        (copy,) = (rest for _, rest in stages()[-1] if rest.startswith(f"--from={part} "))
        assert copy.endswith(" /opt/quarry")
    shutil.copytree(tmp_path / "opt" / "own", installed, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "src")
    if has_compiler:
        subprocess.run([installed / "bin" / "python", "-c", "import quarry_native"], check=True, cwd=tmp_path)
    assert not list(installed.glob("lib/*/site-packages/pip"))
    parts = {str(path): path for path in (installed, Path(sys.base_prefix)) if path != Path("/usr")}
    run_as_the_image_does(tmp_path, str(installed / "bin" / "python"), parts, search_path=f"{installed}/bin:/usr/bin")
