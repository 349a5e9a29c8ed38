"""The root of all commands: it finds and completes them, and ends quietly when the reader of its output is gone.

Help and completion of the root are made from the table of commands. A command is imported when its name is typed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from quarry_mq.cli.command_table import COMMANDS, SECTIONS, Entry
from quarry_mq.cli.terminal.text import harmless

COMPLETION_VARIABLE: Final = "_QUARRY_COMPLETE"
"""Environment variable that is set when a shell wants completions from this run: typer's protocol."""
NOBODY_READS: Final = 128 + signal.SIGPIPE
"""Exit status when the output's reader is gone, as of a program that SIGPIPE ended: no finding, and no fault."""


class Commands(TyperGroup):
    """The root group, with the behaviour that all commands share."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = {
            name: TyperCommand(name, help=entry.summary, rich_help_panel=section)
            for section, entries in SECTIONS.items()
            for name, entry in entries.items()
        }
        _make_help_plain(self)

    def load(self, name: str) -> Any:
        """Import a command of the table with its options, or a family with its commands."""
        command: Any = _loaded(name, COMMANDS[name])
        if _is_completing():
            from quarry_mq.cli.completion import attach

            attach(command, name)
        command.rich_help_panel = getattr(self.commands[name], "rich_help_panel", None)
        self.commands[name] = command
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else self.load(name), rest

    def main(self, *arguments: Any, **more: Any) -> Any:
        if _is_completing():
            from quarry_mq.cli.completion import begin

            begin(self)
        return super().main(*arguments, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _read_no_more()
            raise typer.Exit(NOBODY_READS) from None
        except typer.BadParameter as error:
            error.message = harmless(error.message)  # it repeats words of the command line
            raise


def _loaded(name: str, entry: Entry) -> Any:
    command = _made(name, entry)
    _make_help_plain(command)
    return command


def _make_help_plain(command: Any) -> None:
    """Make help show what can be typed, and paragraphs as wide as the terminal.

    typer shows types such as `<str>` and `<bool>`, which are nothing to type, puts braces around arguments, and breaks
    lines where the source does.
    """
    if command.help:
        command.help = "\n\n".join(" ".join(each.split()) for each in command.help.split("\n\n"))
    command.get_help_option = partial(_help_option, command.get_help_option)
    for param in command.params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.get_usage_pieces = partial(_usage, param)
            param.display_type_rich = _no_type
    for inner in getattr(command, "commands", {}).values():
        _make_help_plain(inner)


def _help_option(made: Callable[[Any], Any], context: Any) -> Any:
    option = made(context)
    if option is not None:
        option.metavar = ""
    return option


def _usage(param: Any, _context: Any) -> list[str]:
    return [param.metavar or param.name.upper()]


def _no_type(ctx: Any = None) -> None:
    """Return no type for an argument: any text can be typed."""


def _made(name: str, entry: Entry) -> Any:
    found = _at(entry.place)
    if not isinstance(found, typer.Typer):
        return _command(name, found)
    family = typer.main.get_group(found)
    family.name, family.help = name, entry.summary
    for word, place in entry.more.items():
        family.add_command(_command(word, _at(place)))
    return family


def _command(name: str, function: Any) -> Any:
    alone = typer.Typer(add_completion=False)
    alone.command(name)(function)
    return typer.main.get_command(alone)


def _at(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _is_completing() -> bool:
    return COMPLETION_VARIABLE in os.environ


def _read_no_more() -> None:
    """Redirect standard output to the null device: else Python complains of the closed pipe at its final flush."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
