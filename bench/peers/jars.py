"""Java programs, fetched and built by Maven at the first use into the cache that the end-to-end tests use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.harness import CannotRun
from tests.e2e.languages import digest, installed, java_classes, run

HERE: Final = Path(__file__).parent
TOOLS: Final = ("java", "javac", "mvn")
WORDS_MAX: Final = 500


def load_generator() -> str:
    """The class path of `quarry.bench.LoadGenerator`. Raises CannotRun."""
    return _or_cannot_run(lambda: java_classes("load-generator", HERE / "client"))


def rocketmq_server() -> str:
    """The class path of RocketMQ's name server and proxy. Raises CannotRun."""
    pom = HERE / "server" / "pom.xml"

    def install(folder: Path) -> None:
        shutil.copy(pom, folder)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder / 'lib'}", "-DincludeScope=runtime"]
        run(["mvn", "-q", "-B", *goal], directory=folder)

    return _or_cannot_run(lambda: f"{installed(f'rocketmq-server-{digest([pom])}', install)}/lib/*")


def _or_cannot_run(build: Callable[[], str]) -> str:
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise CannotRun(f"{tool} is not installed")
    try:
        return build()
    except (AssertionError, subprocess.TimeoutExpired) as error:
        # no registry within reach, most likely: Maven's words tell
        raise CannotRun(" ".join(str(error).split())[:WORDS_MAX]) from error
