"""The commands for a live broker, run in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner, Result

from quarry_mq.cli.main import app
from tests.cli.said import complaint, hint_in
from tests.commands import root
from tests.e2e.broker import Broker

INDEX: Final = {"index.hash_files": "true", "index.hash_slots": 1000, "index.hash_items": 4000}
"""Settings of a broker that finds messages by their keys."""


@contextmanager
def broker_over(directory: Path, fill: Callable[[Path], None]) -> Iterator[Broker]:
    """Run a broker with key index files over the store that `fill` made, and stop it in good order."""
    fill(directory / "store")
    broker = Broker(directory / "store", logs=directory / "logs")
    try:
        yield broker.start(settings=INDEX)
        broker.stop()
    finally:
        broker.close()


class Quarry:
    """`quarry`, pointed at a broker if there is one; `family` are words that stand before all others."""

    def __init__(self, broker: Broker | None, *family: str, environment: Mapping[str, str] | None = None) -> None:
        self._broker = broker
        self._family = family
        self._environment = environment

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "without a broker"
        return self._broker

    def result(self, *arguments: object, stdin: bytes | None = None) -> Result:
        words = [*self._family, *map(str, arguments)]
        return CliRunner().invoke(app, [*words, *self._addresses(words)], input=stdin, env=self._environment)

    def run(self, *arguments: object, status: int = 0, stdin: bytes | None = None) -> str:
        """Standard output of a command that must end with `status`; of one that could not run, what went wrong."""
        result = self.result(*arguments, stdin=stdin)
        assert result.exit_code == status, (result.output, result.exception)
        return complaint(result.stderr) if status == 2 else result.stdout

    def hint(self, *arguments: object) -> str:
        """What a command that could not run says to try."""
        result = self.result(*arguments)
        assert result.exit_code == 2, (result.output, result.exception)
        return hint_in(result.stderr)

    def rows(self, *arguments: object, status: int = 0, stdin: bytes | None = None) -> list[dict[str, Any]]:
        return [json.loads(line) for line in io.StringIO(self.run(*arguments, "--json", status=status, stdin=stdin))]

    def row(self, *arguments: object, status: int = 0) -> dict[str, Any]:
        (row,) = self.rows(*arguments, status=status)
        return row

    def _addresses(self, words: list[str]) -> list[str]:
        """Of the ports that the command talks with, unless it is told of others or may do without."""
        if self._broker is None:
            return []
        command = root()
        for word in words:
            command = getattr(command, "commands", {}).get(word, command)
        found = []
        for option, address in (("--admin", self._broker.admin), ("--endpoint", self._broker.endpoint)):
            if option not in words and any(option in each.opts and each.default for each in command.params):
                found += [option, address]
        return found
