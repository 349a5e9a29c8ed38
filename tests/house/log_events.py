"""The log events of the source: what `log.<level>("event", key=…)` says where it stands."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.source import name, production_files, tree

LEVELS: Final = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
"""Method of a logger to the level of its lines."""

ANY_LEVEL: Final = "any"
"""The level of `log.log`, which gets its level as an argument."""

SHOWN_AS: Final = {"exc_info": "exception"}
"""Keys that come out under another name."""

CALL_KEYS: Final = frozenset({"path", "peer", "client_id", "request_id"})
"""Fields that `server.front.contract.told_of` gives."""

FAULT_KEYS: Final = CALL_KEYS | {"group", "topic", "port", "delayed_until_ms", "half_message"}
"""Fields that `ErrorReporter.report` is given by its callers."""


class LogEvent(NamedTuple):
    """One event, with the keys of all places that log it."""

    text: str
    level: str
    keys: frozenset[str]


class LogCall(NamedTuple):
    """One place."""

    where: str
    level: str
    node: ast.Call

    @property
    def text(self) -> str | None:
        """Return the text; None when it is no constant."""
        position = 1 if self.level == ANY_LEVEL else 0
        match self.node.args[position : position + 1]:
            case [ast.Constant(value=str() as text)]:
                return text
            case _:
                return None

    @property
    def keys(self) -> frozenset[str]:
        named = {SHOWN_AS.get(each.arg, each.arg) for each in self.node.keywords if each.arg is not None}
        if isinstance(self.node.func, ast.Attribute) and self.node.func.attr == "exception":
            named.add("exception")
        for each in self.node.keywords:
            if each.arg is None:
                named |= _spread(each.value)
        return frozenset(named)


def _spread(value: ast.expr) -> frozenset[str]:
    match ast.unparse(value):
        case "told_of(call)":
            return CALL_KEYS
        case "where":
            return FAULT_KEYS
        case other:
            raise AssertionError(f"nothing is known of the keys of **{other}")


def log_calls(path: Path) -> Iterator[LogCall]:
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr="log")):
                yield LogCall(f"{name(path)}:{node.lineno}", ANY_LEVEL, node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=attribute)) if attribute in LEVELS:
                yield LogCall(f"{name(path)}:{node.lineno}", LEVELS[attribute], node)


def logging_files() -> list[Path]:
    """Files whose `log` is structlog's."""
    return [path for path in production_files() if "log = structlog.get_logger(__name__)" in path.read_text()]


def log_events() -> set[LogEvent]:
    """All events, those of the same text and level as one."""
    keys: dict[tuple[str, str], set[str]] = {}
    for path in logging_files():
        for call in log_calls(path):
            if call.text is not None:
                keys.setdefault((call.text, call.level), set()).update(call.keys)
    return {LogEvent(text, level, frozenset(its)) for (text, level), its in keys.items()}
