"""System calls that fail on purpose, by strace: the broker and its libraries meet the error of a real kernel call."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

ATTACH_TIMEOUT_S: Final = 30.0


def need_strace() -> None:
    """Skip the test where strace is missing or may not trace."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    done = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no right to trace: {done.stderr.strip()}")


def failing(call: str, *, error: str, when: str, paths: Sequence[Path] = ()) -> list[str]:
    """Options of strace: the call ends with the error, without being made. `when` counts per thread: `3`, `3+`.

    With paths, only calls on exactly these count.
    """
    options = ["-f", "-qq", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
    for path in paths:
        options += ["-P", str(path)]
    return options


def under_strace(options: Sequence[str], trace: Path) -> list[str]:
    """What to put before a command: it stays the direct child, strace is a process beside it and ends with it."""
    return ["strace", "-D", "--seccomp-bpf", "-o", str(trace), *options]


@contextmanager
def attached(pid: int, options: Sequence[str], trace: Path) -> Iterator[None]:
    """The options hold for all threads of a running process as long as this is entered."""
    options = [each for each in options if each != "-qq"]
    process = subprocess.Popen(
        ["strace", "-p", str(pid), "-o", str(trace), *options], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert "attached" in first, first
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=ATTACH_TIMEOUT_S)
