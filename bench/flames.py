"""Draws flame graphs of the brokers that benchmarks start, on demand: `python -m bench --flames DIRECTORY NAME`.

py-spy samples each broker from outside, with its native frames: those of compiled modules, of the native part and of
RocksDB. It stops the broker for each sample, so the results of such a run are not kept.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Final

from bench.harness import CannotRun

LOOKS_PER_S: Final = 100
END_TIMEOUT_S: Final = 60.0
"""Seconds that py-spy may take to read the symbols of its samples and draw the graph."""


class Flame:
    """Samples one process until that ends."""

    def __init__(self, program: str, pid: int, path: Path) -> None:
        self.path = path
        command = [program, "record", "--pid", str(pid), "--subprocesses", "--native"]
        command += ["--rate", str(LOOKS_PER_S), "--output", str(path)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def end(self) -> None:
        """Wait for the graph, once the process has ended. Raises CannotRun with py-spy's text when it drew nothing."""
        try:
            _, said = self._process.communicate(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        if not self.path.exists():
            raise CannotRun(f"py-spy drew no flame graph: {said.decode(errors='replace').strip()[-500:]}")


class Flames:
    """The flame graphs of one benchmark:

    `<benchmark>-1.svg` and so on, in the order in which its brokers were started.
    """

    def __init__(self, directory: Path | None = None, benchmark: str = "") -> None:
        """Prepare the graphs; without a directory none is drawn. Raises CannotRun without py-spy."""
        self._directory = directory
        self._benchmark = benchmark
        self._numbers = count(1)
        self._program = ""
        if directory is not None:
            self._program = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or ""
            if not self._program:
                raise CannotRun("py-spy is missing, which draws flame graphs: install the extra `flames`")
            directory.mkdir(parents=True, exist_ok=True)

    def begin(self, pid: int) -> Flame | None:
        if self._directory is None:
            return None
        return Flame(self._program, pid, self._directory / f"{self._benchmark}-{next(self._numbers)}.svg")


class _Current:
    flames = Flames()


def draw(flames: Flames) -> None:
    """Draw a flame graph of each broker that is started from now on."""
    _Current.flames = flames


def begin(pid: int) -> Flame | None:
    return _Current.flames.begin(pid)
