"""Runs the load generator: one Java process that executes commands, one at a time."""

from __future__ import annotations

import json
import select
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.peers.maven import class_path

PROJECT: Final = Path(__file__).parent / "load-generator"
ANSWER_TIMEOUT_S: Final = 120.0
"""Seconds to wait for an answer: far above the length of any command, which ends by itself."""


class LoadFailed(Exception):
    """The generator refused a command, gave no answer or has ended."""


class LoadGenerator:
    """`quarry.bench.LoadGenerator` in its own process, with `home` for its logs."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        options = ["-Xms512m", "-Xmx1g", "-XX:+UseG1GC", f"-Duser.home={home}", "-Drocketmq.log.level=ERROR"]
        options += ["-cp", class_path(PROJECT)]
        self._errors = home / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                ["java", *options, "quarry.bench.LoadGenerator"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, mode: str, **words: object) -> dict[str, Any]:
        """Send a command and wait for its answer. Raises LoadFailed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        named = {"mode": mode, **{name.replace("_", "-"): value for name, value in words.items()}}
        self._process.stdin.write(" ".join(f"{name}={value}" for name, value in named.items()) + "\n")
        self._process.stdin.flush()
        # one line per command, so nothing can lie in the buffer that select does not see
        readable, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise LoadFailed(f"no answer to {named}: {self._errors.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise LoadFailed(f"{named}: {answer['error']}")
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
