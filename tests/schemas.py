"""Holds what commands print with --json to their schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import jsonschema

from quarry_mq.cli.schemas.shapes import commands, own_name, schema_of


@cache
def _validator(command: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(command))


def command_of(words: Sequence[str]) -> str | None:
    """The command of a command line; None for what is none of those with a schema."""
    rest = [*words[2:]] if words[:1] == ["--context"] else [*words]
    for length in (2, 1):
        name = own_name(" ".join(rest[:length]))
        if len(rest) >= length and name in commands():
            return name
    return None


def assert_documented(words: Sequence[str], output: str) -> None:
    """Each line is as the schema of the command has it. Lines of a command without --json are not looked at."""
    command = command_of(words)
    if command is None or "--json" not in words or {"show", "--output"} <= set(words):
        return
    for line in output.removesuffix("\n").split("\n") if output else ():
        best = jsonschema.exceptions.best_match(_validator(command).iter_errors(json.loads(line)))
        assert best is None, f"quarry {command} --json: {best.json_path}: {best.message}\n{line[:2000]}"
