"""The shell that a page's commands are typed into, with a folder and, where the kernel allows it, a network of its own.

In a network of its own a page has 127.0.0.1 for itself, so that commands and addresses are those of the page, letter by
letter, and pages run at the same time. Where that is not allowed they have the machine's, one after the other.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Final, NamedTuple, Self

from tests.documents.pages import ROOT
from tests.e2e.broker import DISK_OF_THE_TESTS

COMMAND_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 30.0
RAISE_LOOPBACK: Final = """
import fcntl, os, socket, struct, sys
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
os.execvp(sys.argv[1], sys.argv[1:])
"""
FOREGROUND: Final = re.compile(r"^(\w+=\S+ )*(quarry( --context \S+)? (serve|console)\b|make serve\b)(?!.*&$)")
"""A command that runs until it is told to stop: its terminal is busy, and the page goes on in another one."""


class Result(NamedTuple):
    status: int
    output: list[str]


class Foreground:
    """A command in a terminal of its own."""

    def __init__(self, process: int, file: Path) -> None:
        self.process = process
        self._file = file
        self._seen = 0

    def output(self) -> list[str]:
        """Return the output since `forget`."""
        return self._file.read_text(encoding="utf-8", errors="replace")[self._seen :].splitlines()

    def discard(self) -> None:
        self._seen = len(self._file.read_text(encoding="utf-8", errors="replace"))


@cache
def own_network() -> tuple[str, ...]:
    """Return the words before a command that give it a loopback of its own; nothing where the kernel does not allow it.

    Its processes are its own, too: all of them end with it, however the tests end.
    """
    raising = (sys.executable, "-c", RAISE_LOOPBACK)
    for flags in ("-n", "-rn"):
        words = ("unshare", flags, "--pid", "--fork", "--kill-child", "--mount-proc", *raising)
        if (
            shutil.which("unshare")
            and not subprocess.run([*words, "true"], capture_output=True, check=False).returncode
        ):
            return words
    return ()


class Session:
    """`folder` is new; it is the home of the session, too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outputs = folder.parent / f"{folder.name}-outputs"
        self._commands = folder.parent / f"{folder.name}-commands"
        for each in (folder, self._outputs, self._commands):
            each.mkdir(parents=True)
        _make_commands(self._commands)
        self._ending = ExitStack()
        self._foreground: list[Foreground] = []
        self._numbers = iter(range(1_000_000))

    def __enter__(self) -> Self:
        if not own_network():
            self._ending.enter_context(_only_one())
        self._bash = subprocess.Popen(
            [*own_network(), "bash", "--norc", "--noprofile"],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        # with job control, so that what runs in the background is told by Ctrl-C as in a terminal
        self.run("set -m")
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for each in self._foreground:
                self._tell(each, signal.SIGTERM)
            self._bash.communicate("kill $(jobs -p)\nwait\n", STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass  # a command hangs, which its page has been told
        finally:
            self._bash.kill()
            self._bash.communicate()
            self._ending.close()

    def run(self, command: str) -> Result:
        """Type it and wait for its end. Both of its outputs are one."""
        output = self._outputs / f"{next(self._numbers)}"
        ended = output.with_suffix(".ended")
        # in braces it runs in this very shell: variables and folders stay
        self._say(f"{{ {command}\n}} > {output} 2>&1 < /dev/null; echo $? > {ended}.part; mv {ended}.part {ended}")
        self._until(ended)
        return Result(int(ended.read_text()), _lines(output))

    def start(self, command: str) -> Foreground:
        """Type it in another terminal."""
        output = self._outputs / f"{next(self._numbers)}"
        started = output.with_suffix(".started")
        output.touch()
        noted = f"echo $! > {started}.part; mv {started}.part {started}"
        self._say(f"{{ exec env {command}\n}} > {output} 2>&1 < /dev/null & {noted}")
        self._until(started)
        self._foreground.append(Foreground(int(started.read_text()), output))
        return self._foreground[-1]

    def latest(self) -> Foreground:
        """Return the command that Ctrl-C would stop."""
        return self._foreground[-1]

    def interrupt(self) -> Result:
        """Ctrl-C for what was started last, and what it says after that."""
        latest = self._foreground.pop()
        self._tell(latest, signal.SIGINT)
        status = self.run(f"wait {latest.process}").status
        return Result(status, latest.output())

    def _tell(self, foreground: Foreground, number: signal.Signals) -> None:
        self._say(f"kill -{number.value} -- -{foreground.process}")  # the number is one that the shell knows

    def _say(self, text: str) -> None:
        stdin: IO[str] | None = self._bash.stdin
        assert stdin is not None
        stdin.write(text + "\n")
        stdin.flush()

    def _until(self, file: Path) -> None:
        deadline = time.monotonic() + COMMAND_TIMEOUT_S
        while not file.exists():
            assert self._bash.poll() is None, "the shell has ended"
            assert time.monotonic() < deadline, f"not ended after {COMMAND_TIMEOUT_S} s"
            time.sleep(0.005)

    def _environment(self) -> dict[str, str]:
        theirs = ("QUARRY_", "PYTEST_", "XDG_", "COLUMNS", "LINES", "MAKE", "MFLAGS")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
        return {
            **kept,
            **DISK_OF_THE_TESTS,
            "HOME": str(self.folder),
            # behind the commands: what comes with the libraries, such as spark-submit
            "PATH": f"{self._commands}:{kept.get('PATH', os.defpath)}:{Path(sys.executable).parent}",
            "PYTHONPATH": str(ROOT),
            "LC_ALL": "C.UTF-8",
        }


def _make_commands(folder: Path) -> None:
    """`quarry` and `python` of this checkout, whatever is installed."""
    for name, words in {"quarry": "-m quarry_mq.cli.main ", "python": "", "python3": ""}.items():
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        script.chmod(0o755)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8", errors="replace").splitlines()


@contextmanager
def _only_one() -> Iterator[None]:
    """The machine's own addresses are one page's at a time."""
    with (Path(__file__).parent / "__init__.py").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
