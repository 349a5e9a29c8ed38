"""Virtual environments of their own, to install what is built."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.deploy.manifests import ROOT
from tests.e2e.broker import clean_environment

TIMEOUT_S: Final = 120.0


def run(
    *words: object, cwd: Path = ROOT, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> str:
    """Return the standard output of a program that has to succeed."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**clean_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


class Environment:
    """A virtual environment of its own. Libraries come from the one that the tests run in, packages of ours do not."""

    def __init__(self, folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin" / "python"
        self.quarry = folder / "bin" / "quarry"
        [self.packages] = (folder / "lib").glob("python*/site-packages")

    def pip(self, *words: object) -> None:
        # with -P, for the folder that this runs in is not to be seen by pip
        run(sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--python", self.python, *words)

    def borrow_libraries(self) -> None:
        """A folder that is named in a file of this one is searched; what its own files name is not."""
        found = {str(Path(each).resolve()) for each in sys.path if Path(each).name == "site-packages"}
        (self.packages / "borrowed.pth").write_text("".join(f"{each}\n" for each in sorted(found)))

    def top_names(self) -> set[str]:
        ignored = (".dist-info", ".pth")
        return {each.name for each in self.packages.iterdir() if not each.name.endswith(ignored)} - {"__pycache__"}
