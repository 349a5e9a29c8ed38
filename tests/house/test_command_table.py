"""The table of commands names each command that there is, where it is, and what it is for."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.models import ArgumentInfo, OptionInfo

from quarry_mq.cli import main
from quarry_mq.cli.command_table import COMMANDS
from tests.commands import commands, root
from tests.house.source import PACKAGE, ROOT, name, production_files


def modules() -> Iterator[Any]:
    for path in production_files():
        if path.is_relative_to(ROOT / "cli") and name(path) != "cli/pipeline/submit.py":
            dotted = name(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            yield import_module(f"{PACKAGE}.{dotted}")


def functions_with_options() -> Iterator[Any]:
    """Those that only a command can be: they are told by typer what somebody typed."""
    for module in modules():
        for function in vars(module).values():
            if inspect.isfunction(function) and function.__module__ == module.__name__ and has_options(function):
                yield function


def has_options(function: Any) -> bool:
    try:
        hints = typing.get_type_hints(function, include_extras=True).values()
    except NameError:  # of types for the type checker alone: typer could make no command of it
        return False
    return any(isinstance(each, ArgumentInfo | OptionInfo) for hint in hints for each in typing.get_args(hint))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_where_the_table_says_and_does_what_it_says(command: str) -> None:
    found, entry = root().commands[command], COMMANDS[command]
    assert found.name == command
    assert " ".join(found.help.split("\n\n")[0].split()) == entry.summary


def test_no_command_is_missing() -> None:
    known = {inspect.unwrap(command.callback) for _, command in commands()}
    missing = [f"{each.__module__}:{each.__name__}" for each in functions_with_options() if each not in known]
    assert missing == [f"quarry_mq.cli.main:{main.quarry.__name__}"], (
        "to be in cli/command_table.py, or in a family that is there"
    )


def test_no_family_is_missing() -> None:
    listed = {entry.place.partition(":")[0] for entry in COMMANDS.values()}
    with_family = {
        module.__name__
        for module in modules()
        if any(isinstance(each, typer.Typer) and each is not main.app for each in vars(module).values())
    }
    assert with_family <= listed
