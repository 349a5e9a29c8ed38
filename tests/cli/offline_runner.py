"""The offline commands, run in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from quarry_mq.cli.main import app
from tests.cli.said import complaint


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments])


def lines(*arguments: object) -> list[dict[str, Any]]:
    """What a command that must succeed prints with --json."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def refusal(code: int, *arguments: object) -> str:
    """The one line on stderr, but for a hint, of a command that must end with this code."""
    result = run(*arguments)
    assert result.exit_code == code, (result.exit_code, result.output, result.exception)
    (line,) = complaint(result.stderr).splitlines()
    return line


def flip(path: Path, position: int, mask: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ mask]))


def zero(path: Path, start: int, end: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(bytes(end - start))
