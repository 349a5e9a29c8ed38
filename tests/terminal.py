"""A real terminal, by tmux: what a person would see on it."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.broker import PROJECT

TIMEOUT_S = 30.0


class Terminal:
    """Runs one command from `with` to its end. `socket` is a file that does not exist yet."""

    def __init__(self, socket: Path, *, columns: int = 100, lines: int = 40) -> None:
        self._socket = socket
        self._size = ["-x", str(columns), "-y", str(lines)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tmux("kill-server", may_fail=True)

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start it; its exit status is shown behind what it says."""
        words = " ".join(map(shlex.quote, ["env", *(f"{name}={text}" for name, text in environment.items()), *command]))
        self._tmux("new-session", "-d", *self._size, f"{words}; echo status=$?; sleep {TIMEOUT_S:.0f}")

    def seen(self) -> list[str]:
        """The lines of the screen."""
        return self._tmux("capture-pane", "-p").splitlines()

    def press(self, *keys: str) -> None:
        """Keys by tmux's names (`Enter`, `Escape`, `C-c`), or as they are."""
        self._tmux("send-keys", *keys)

    def until(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        """The first screen for which it holds."""
        end_s = time.monotonic() + TIMEOUT_S
        while True:
            lines = self.seen()
            if condition(lines):
                return lines
            assert time.monotonic() < end_s, "\n".join([f"not within {TIMEOUT_S} s: {what}", *lines])
            time.sleep(0.1)

    def _tmux(self, *words: str, may_fail: bool = False) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", str(self._socket), *words],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert may_fail or not done.returncode, done.stderr
        return done.stdout
