"""Write the locks: every package of an image, in one version, with the hashes of its files.

    make lock

`broker.txt` is what the image of a broker holds beside Quarry, `spark.txt` that of Spark's pods, and `build.txt` what
builds Quarry's own packages. Versions that a lock has stay as long as they are within the ranges of pyproject.toml;
`make lock LOCK_ARGS=--upgrade` takes the newest ones.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

LOCKS: Final = Path(__file__).parent
ROOT: Final = LOCKS.parents[1]
PROJECTS: Final = ("pyproject.toml", "native/pyproject.toml")
EXTRAS: Final = {"broker.txt": ("operator", "tracing"), "spark.txt": ("pipeline",)}
"""The optional parts of Quarry that each lock is of."""

COMMAND: Final = ("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes")
TEXT: Final = ("--no-emit-index-url", "--custom-compile-command", "make lock")


def build_requirements() -> list[str]:
    """The ranges of what builds Quarry's packages."""
    projects = [tomllib.loads((ROOT / each).read_text(encoding="utf-8")) for each in PROJECTS]
    return [requirement for project in projects for requirement in project["build-system"]["requires"]]


def lock(name: str, arguments: list[str], requirements: str | None = None) -> None:
    """Write one lock. Raises CalledProcessError where no versions agree."""
    command = [*COMMAND, *TEXT, "--output-file", str(LOCKS / name), *arguments]
    subprocess.run(command, input=requirements, text=True, check=True, cwd=ROOT)


def main(arguments: list[str]) -> None:
    for name, extras in EXTRAS.items():
        options = [word for extra in extras for word in ("--extra", extra)]
        lock(name, [*options, "pyproject.toml", *arguments])
    lock("build.txt", ["-", *arguments], "\n".join(build_requirements()))


if __name__ == "__main__":
    main(sys.argv[1:])
