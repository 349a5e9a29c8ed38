"""Builds small Maven projects: resolved and compiled at the first use into a cache outside the project."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final
from zlib import crc32

from bench.harness import CannotRun

TOOLS: Final = ("java", "javac", "mvn")
BUILD_TIMEOUT_S: Final = 600
WORDS_MAX: Final = 500


def class_path(project: Path) -> str:
    """Return the class path of the project with the `pom.xml` in this folder, its own classes included.

    Raises CannotRun when a tool is missing or the build fails, most likely because no registry can be reached.
    """
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise CannotRun(f"{tool} is not installed")
    cache = Path(os.environ.get("BENCH_CACHE", Path.home() / ".cache" / "quarry-bench"))
    cache.mkdir(parents=True, exist_ok=True)
    sources = sorted(project.glob("src/**/*.java"))
    version = crc32(b"".join(path.read_bytes() for path in (project / "pom.xml", *sources)))
    built = cache / f"{project.name}-{version:08x}"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time, also of other runs
        if not built.exists():
            unfinished = cache / f"{built.name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _build(project, sources, unfinished)
            unfinished.rename(built)
    return f"{built}/classes:{built}/lib/*"


def _build(project: Path, sources: list[Path], folder: Path) -> None:
    pom = folder / "pom.xml"
    shutil.copy(project / "pom.xml", pom)
    libraries, classes = folder / "lib", folder / "classes"
    copy = ["dependency:copy-dependencies", f"-DoutputDirectory={libraries}", "-DincludeScope=runtime"]
    _run("mvn", "-q", "-B", "-f", str(pom), *copy)
    if sources:
        options = ["-nowarn", "-encoding", "UTF-8", "--release", "17"]
        _run("javac", *options, "-cp", f"{libraries}/*", "-d", str(classes), *map(str, sources))


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{command[0]} takes more than {BUILD_TIMEOUT_S} s") from error
    if done.returncode != 0:
        words = " ".join((done.stdout + done.stderr).split())
        raise CannotRun(f"{command[0]} ended with status {done.returncode}: {words[:WORDS_MAX]}")
