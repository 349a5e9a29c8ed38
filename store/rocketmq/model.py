"""The result of reading RocketMQ's metadata, warnings about it, and the reading of its JSON text.

The text is JSON, except that integer keys of maps have no quotes (`{0:12,1:9}`). Some releases quote them, so both are
read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic
from quarry_mq.store.pending import PendingBefore

WARNINGS_MAX: Final = 100
"""The number of warnings kept in full; more are only counted. A million bad rows must not become a million lines."""


class DataVersion(NamedTuple):
    """A data version says how new a copy of a table is; versions are compared field by field, as RocketMQ does."""

    state_version: int
    counter: int
    timestamp_ms: int

    @property
    def row(self) -> dict[str, int]:
        """Return the version as it stands in JSON documents."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class ConsumerOffset(NamedTuple):
    """A consumer offset is the queue offset at which the group continues in the queue."""

    group: str
    queue: QueueId
    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class RocketmqMetadata:
    """The object holds the metadata that is imported. `light_offsets` are those of light queues (`%LMQ%…`).

    `warnings` are sentences for the operator: what was damaged, ambiguous or has no counterpart.
    """

    topics: list[Topic]
    groups: list[Group]
    offsets: list[ConsumerOffset]
    light_offsets: list[ConsumerOffset]
    warnings: list[str]
    pending: PendingBefore = field(default_factory=PendingBefore)


class Warnings:
    """The class collects warnings up to a limit."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._dropped = 0

    def add(self, warning: str) -> None:
        if len(self._kept) < WARNINGS_MAX:
            self._kept.append(warning)
        else:
            self._dropped += 1

    def texts(self) -> list[str]:
        """Return the warnings; the last one counts those that were not kept."""
        more = [f"and {self._dropped} more warnings"] if self._dropped else []
        return self._kept + more


_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL | re.ASCII)
"""The pattern matches a string, or a bare integer key with what stands before it.

A string's closing quote is optional: if it were required, text with a lost quote would be searched again from every
later quote. Strings are matched first, so nothing inside one is taken for a key.
"""


class NotJson(ValueError):
    """The text is neither JSON nor RocketMQ's form of it; the message says where it breaks."""


def parse_json(text: bytes) -> dict[str, Any]:
    """Return the object that the text holds, with integer keys as text. Raises NotJson, also if it is no object."""
    try:
        value = _load(text.decode())
    except (ValueError, RecursionError) as cause:
        raise NotJson(str(cause)) from cause
    if not isinstance(value, dict):
        raise NotJson("the text is not a JSON object")
    return value


def _load(text: str) -> object:
    try:
        return json.loads(text, strict=False)  # most files have no integer keys, and quoting costs ten times this
    except json.JSONDecodeError:
        return json.loads(quote_integer_keys(text), strict=False)


def quote_integer_keys(text: str) -> str:
    """Return the text with its bare integer keys in quotes; nothing else changes. Linear in its length."""
    return _TOKEN.sub(_quoted, text)


def _quoted(token: re.Match[str]) -> str:
    before, key = token.groups()
    return token[0] if key is None else f'{before}"{key}"'


def format_json(value: object) -> str:
    """Return a document as RocketMQ writes its files: one tab per level, keys that are integers without quotes."""
    return _formatted(value, "\n")


def _formatted(value: object, line: str) -> str:
    inner = line + "\t"
    if isinstance(value, Mapping) and value:
        members = [
            f"{inner}{key if isinstance(key, int) else _text(key)}:{_formatted(member, inner)}"
            for key, member in value.items()
        ]
        return "{" + ",".join(members) + line + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + ",".join(inner + _formatted(member, inner) for member in value) + line + "]"
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
