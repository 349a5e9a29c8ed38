"""Measures how long a newcomer waits for the first message: `python -m tests.documents.first_message`.

The last commit is cloned, and `make serve` installs and starts it with a PATH on which there is no Rust. Then the
programs of the client pages send and receive a message on this broker, unchanged but for the address. One JSON line
tells seconds of wall-clock time and of CPU: until "Quarry is ready.", until it is ready the second time, and from the
start of each program to its message. What the tools of a language fetch or compile before is not counted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.cli.demo import free_ports
from quarry_mq.server.process.banner import READY_LINE
from tests.documents.client_programs import ADDRESS, COMMANDS, SAID, programs
from tests.documents.pages import ROOT
from tests.e2e.broker import clean_environment

PAGES: Final = {"python": "python", "java": "java", "go": "go", "javascript": "node"}
"""The page below docs/clients for each language."""

READY_TIMEOUT_S: Final = 900.0
STOP_TIMEOUT_S: Final = 60.0
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


class Spent(NamedTuple):
    """Seconds of wall-clock time, and of CPU in all processes together."""

    wall_s: float
    cpu_s: float


def fresh(scratch: Path) -> dict[str, str]:
    """Return the environment of a machine that has no compiler for the native part and has downloaded nothing yet."""
    environment = clean_environment()
    environment |= {"UV_CACHE_DIR": str(scratch / "uv"), "PIP_CACHE_DIR": str(scratch / "pip")}
    folders = environment["PATH"].split(os.pathsep)
    environment["PATH"] = os.pathsep.join(each for each in folders if shutil.which("cargo", path=each) is None)
    return environment


def cpu_s_below(pid: int) -> float:
    """Return the CPU time of a process, of its descendants, and of all that these have waited for."""
    parents: dict[int, tuple[int, int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, total = {pid}, 0
    while found:
        total += sum(parents[each][1] for each in found if each in parents)
        found = {each for each, (parent, _) in parents.items() if parent in found}
    return total / TICKS_PER_S


@contextmanager
def serving(clone: Path, arguments: str, spent: dict[str, Spent], name: str) -> Iterator[None]:
    """Run `make serve` until it is ready, note what that took, and end it afterwards."""
    output = clone.parent / "serve.log"
    began_s = time.monotonic()
    with output.open("w") as log:
        # a group of its own, for a terminal ends make and the broker together
        make = subprocess.Popen(
            ["make", "serve", f"SERVE_ARGS={arguments}"],
            cwd=clone,
            env=fresh(clone.parent),
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        while READY_LINE not in output.read_text():
            if make.poll() is not None or time.monotonic() - began_s > READY_TIMEOUT_S:
                raise RuntimeError(f"make serve:\n{output.read_text()}")
            time.sleep(0.02)
        spent[name] = Spent(time.monotonic() - began_s, cpu_s_below(make.pid))
        yield
    finally:
        if make.poll() is None:
            os.killpg(make.pid, signal.SIGINT)
        make.wait(STOP_TIMEOUT_S)


def first_message(clone: Path, language: str, address: str, folder: Path) -> Spent:
    """Run the first program of a client page. Raises RuntimeError if it does not tell its message."""
    program = programs(clone / "docs" / "clients" / f"{PAGES[language]}.md", language)[0]
    folder.mkdir()
    command = [str(word) for word in COMMANDS[language](program.text.replace(ADDRESS, address), folder)]
    if language == "python":
        command[0] = str(clone / ".venv" / "bin" / "python")
    began_s, before = time.monotonic(), os.times()
    done = subprocess.run(
        command, env={**os.environ, "HOME": str(folder)}, capture_output=True, text=True, timeout=120.0, check=False
    )
    wall_s, after = time.monotonic() - began_s, os.times()
    if SAID not in done.stdout.splitlines():
        raise RuntimeError(f"{language}:\n{done.stdout}\n{done.stderr}")
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(wall_s, cpu_s)


def main() -> int:
    """Print one line. The scratch folder is deleted at the end."""
    spent: dict[str, Spent] = {}
    with tempfile.TemporaryDirectory(prefix="quarry-first-message-") as scratch:
        clone = Path(scratch) / "quarry"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        ports = free_ports(3)
        address = f"127.0.0.1:{ports[0]}"
        arguments = (
            f"--store {scratch}/store --listen {address} --admin 127.0.0.1:{ports[1]} --http 127.0.0.1:{ports[2]}"
        )
        with serving(clone, arguments, spent, "ready"):
            for language in PAGES:
                spent[language] = first_message(clone, language, address, Path(scratch) / language)
        with serving(clone, arguments, spent, "ready again"):
            pass
    print(
        json.dumps(
            {name: {key: round(value, 2) for key, value in each._asdict().items()} for name, each in spent.items()}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
