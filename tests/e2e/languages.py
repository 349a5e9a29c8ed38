"""The client libraries of other languages, installed at the first use into a cache outside the project."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.clients import Language

HERE: Final = Path(__file__).parent
INSTALL_TIMEOUT_S: Final = 600


def cache() -> Path:
    return Path(os.environ.get("E2E_CACHE", Path.home() / ".cache" / "quarry-tests"))


def digest(paths: Sequence[Path]) -> str:
    """Names what is built from these files: another content, another folder."""
    total = hashlib.sha256()
    for path in paths:
        total.update(path.read_bytes())
    return total.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until nobody else is here, also in another run of the tests."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; `install` fills it the first time. A failed attempt leaves nothing."""
    target = cache() / name
    with locked(cache() / f"{name}.lock"):
        if not target.exists():
            unfinished = cache() / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            install(unfinished)
            unfinished.rename(target)
    return target


def run(command: Sequence[str | Path], *, directory: Path) -> None:
    """Run an installer. Fails with its words."""
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"


def need(*tools: str) -> None:
    """Skip the test when a tool is absent, and say which."""
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def checkout(repository: str, tag: str, *, owner: str = "apache") -> Path:
    """The files of a tagged version of a public repository. Skips the test where they cannot be had.

    `ROCKETMQ_REPOSITORIES` is the folder or the address below which all repositories are, whoever owns them.
    """
    need("git")

    def install(folder: Path) -> None:
        origin = f"{os.environ.get('ROCKETMQ_REPOSITORIES', f'https://github.com/{owner}')}/{repository}"
        command = ["git", "clone", "--quiet", "--depth", "1", "--branch", tag, origin, str(folder / repository)]
        cloned = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
        if cloned.returncode:
            pytest.skip(f"{origin} cannot be had: {cloned.stderr.strip()[-200:]}")

    return installed(f"{repository}-{tag}", install) / repository


def java_classes(name: str, project: Path) -> str:
    """Build a small Maven project; returns its class path. Its version is that of all its files."""
    need("java", "javac", "mvn")
    sources = sorted((project / "src").rglob("*.java"))

    def install(folder: Path) -> None:
        pom = folder / "pom.xml"
        shutil.copy(project / "pom.xml", pom)
        libraries = folder / "lib"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={libraries}", "-DincludeScope=runtime"]
        run(["mvn", "-q", "-B", "-f", pom, *goal], directory=folder)
        compiler = ["javac", "-nowarn", "-encoding", "UTF-8", "--release", "17"]
        run([*compiler, "-cp", f"{libraries}/*", "-d", folder / "classes", *sources], directory=folder)

    target = installed(f"{name}-{digest([project / 'pom.xml', *sources])}", install)
    return f"{target}/classes:{target}/lib/*"


def go_program(name: str, project: Path) -> Path:
    """Build a small Go module, `{name}-go` in the cache; returns the program. All its files are its version."""
    need("go")

    def install(folder: Path) -> None:
        run(["go", "build", "-buildvcs=false", "-o", folder / name, "."], directory=project)

    sources = [project / "go.mod", project / "go.sum", *sorted(project.glob("*.go"))]
    return installed(f"{name}-go-{digest(sources)}", install) / name


def go_tool(module: str) -> Path:
    """A program of somebody else's Go module, `path@version`."""
    need("go")
    package, _, version = module.partition("@")
    name = package.rpartition("/")[2]

    def install(folder: Path) -> None:
        # one package at a time: whoever waits for this has other work on the machine
        run(["env", f"GOBIN={folder}", "GOFLAGS=-p=1", "nice", "-n", "15", "go", "install", module], directory=folder)

    return installed(f"{name}-{version}", install) / name


def python() -> Language:
    return Language(
        name="python",
        directory=HERE.parents[1],
        producer=[sys.executable, "-m", "tests.e2e.python.producer"],
        simple_consumer=[sys.executable, "-m", "tests.e2e.python.simple_consumer"],
        push_consumer=[sys.executable, "-m", "tests.e2e.python.push_consumer"],
        lite_push_consumer=[sys.executable, "-m", "tests.e2e.python.lite_push_consumer"],
        lite_simple_consumer=[sys.executable, "-m", "tests.e2e.python.lite_simple_consumer"],
    )


def node() -> Language:
    need("node", "npm")
    package = HERE / "node" / "package.json"

    def install(folder: Path) -> None:
        shutil.copy(package, folder)
        options = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        run(["npm", "install", *options], directory=folder)

    folder = installed(f"node-{digest([package])}", install)
    # NODE_PATH: the packages do not lie beside the programs, where Node.js looks first
    command = ["env", f"NODE_PATH={folder}/node_modules", "node"]
    return Language(
        name="node",
        directory=HERE / "node",
        producer=[*command, "producer.js"],
        simple_consumer=[*command, "simple_consumer.js"],
        push_consumer=[*command, "push_consumer.js"],
        lite_push_consumer=[*command, "lite_push_consumer.js"],
    )


def java() -> Language:
    class_path = java_classes("java-client", HERE / "java")
    command = ["java", "-Xmx128m", "-Drocketmq.log.level=ERROR", "-cp", class_path]
    program = "quarry.e2e.ClientProgram"
    return Language(
        name="java",
        directory=HERE / "java",
        producer=[*command, program, "producer"],
        simple_consumer=[*command, program, "simple-consumer"],
        push_consumer=[*command, program, "push-consumer"],
        lite_push_consumer=[*command, program, "lite-push-consumer"],
    )


def go() -> Language:
    program = str(go_program("client", HERE / "go"))
    return Language(
        name="go",
        directory=HERE / "go",
        producer=[program, "producer"],
        simple_consumer=[program, "simple-consumer"],
        push_consumer=[program, "push-consumer"],
        lite_push_consumer=[program, "lite-push-consumer"],
    )


def rust() -> Language:
    need("cargo")
    project = HERE / "rust"
    # apart from the result, so that another version of the program does not compile its libraries anew
    target = cache() / "client-rust-target"

    def install(folder: Path) -> None:
        run(["cargo", "build", "--quiet", "--locked", "--target-dir", target], directory=project)
        shutil.copy(target / "debug" / "quarry-client", folder)

    sources = [project / name for name in ("Cargo.toml", "Cargo.lock", "src/main.rs")]
    program = str(installed(f"client-rust-{digest(sources)}", install) / "quarry-client")
    return Language(
        name="rust",
        directory=project,
        producer=[program, "producer"],
        simple_consumer=[program, "simple-consumer"],
        push_consumer=[program, "push-consumer"],
    )


LANGUAGES: Final[dict[str, Callable[[], Language]]] = {
    "python": python,
    "node": node,
    "java": java,
    "go": go,
    "rust": rust,
}
