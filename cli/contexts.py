"""Holds the named context of this run, and gives its values to options."""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

import typer

from quarry_mq.cli.context_file import Context, ContextInvalid, all_contexts, contexts_file, current_name, read_context
from quarry_mq.cli.terminal.exit import Exit, end

_ADDRESS: Final = re.compile(r"[^\s/]+:\d{1,5}")
_CHOSEN: Final[ContextVar[str | None]] = ContextVar("chosen", default=None)


def choose(name: str | None) -> None:
    """Set the context of this run; None: `--context` names none. The file is not read before a command connects."""
    _CHOSEN.set(name)


def chosen() -> Context | None:
    """Return the context of this run. Ends the command with one line if the file is invalid."""
    name = chosen_name()
    if name is None:
        return None
    try:
        return context_of(name)
    except ContextInvalid as error:
        end(Exit.COULD_NOT_RUN, str(error))


def context_of(name: str) -> Context:
    """Return the context of the file, or for an address one with this admin address alone. Raises ContextInvalid."""
    if _ADDRESS.fullmatch(name) and name not in all_contexts():
        return Context(admin=name)
    return read_context(contexts_file(), name)


def chosen_name() -> str | None:
    return _CHOSEN.get() or current_name()


def admin_of_context(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Callback of `--admin`: return the option, or the chosen context's value if the option is not given."""
    return _given_or(context, param, value, "admin")


def endpoint_of_context(context: typer.Context, param: typer.CallbackParam, value: str) -> str:
    """Callback of `--endpoint` where no broker is asked: return the option, or the chosen context's value."""
    return _given_or(context, param, value, "endpoint")


def _given_or(context: typer.Context, param: typer.CallbackParam, value: str, key: str) -> str:
    source = context.get_parameter_source(param.name or "")
    if source is None or source.name != "DEFAULT":
        return value
    said = chosen()
    return value if said is None else getattr(said, key) or value


def is_given(context: typer.Context, name: str | None) -> bool:
    """Return whether an option is on the command line, as far as it was parsed."""
    source = context.get_parameter_source(name or "")
    return source is not None and source.name != "DEFAULT"
