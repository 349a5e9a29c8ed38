"""Rows of the table of admin calls: each has all four cases, or says why one of them cannot be.

Requests are written as changes of a good one, by field: `{"topic.name": "nothing"}`. None takes a field away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf import json_format, message_factory
from google.protobuf.message import Message

from tests.admin_calls.bench import METHODS, Bench, Ending

Fields = Mapping[str, Any]
Change = Fields | Callable[[Bench], Fields]
"""A function makes what the request is about, under a name that nothing else has."""

Code = grpc.StatusCode | int
"""A number is of RocketMQ's own service, which says in the status of its answers how a call went."""

ENDLESS: Final = "x" * 20_000
CONTROL: Final = "a\x1b[2J"


class Refusal(NamedTuple):
    """`text` is part of what the refusal says: the field, or the thing that is not there."""

    change: Change
    code: Code
    text: str


class Never(NamedTuple):
    """A case that there cannot be."""

    reason: str


class Elsewhere(NamedTuple):
    """A case that needs more than a broker and a client: the test that has it, as `path::test`."""

    test: str


class SuperUsers(NamedTuple):
    """No rule allows it."""


class Unseen(NamedTuple):
    """A caller who lacks a right is not refused, but answered as if nothing were there. `holds` gets how that ends."""

    holds: Callable[[Ending], bool]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One call.

    `request` with `prepared` is answered, and `holds` gets the answer, of a stream the list of its answers. `needs` are
    rules as `topic:orders get`: without all of them `request` with `asked` is refused, and with them it changes nothing
    that other cases need.
    """

    request: Fields = field(default_factory=dict)
    prepared: Change = field(default_factory=dict)
    holds: Callable[[Any], bool] | Elsewhere
    missing: Sequence[Refusal] | Never
    malformed: Sequence[Refusal] | Never
    needs: Sequence[str] | SuperUsers | Unseen
    asked: Fields = field(default_factory=dict)
    on_other_broker: bool = False
    """It needs the one that is a member of a cluster, with consume queues in files."""


Table = Mapping[str, Row]
"""Rows by `package.Service/Method`."""


def of_service(service: str, **rows: Row) -> Table:
    return {f"{service}/{method}": row for method, row in rows.items()}


def bad_names(name: str, code: Code, text: str = "") -> list[Refusal]:
    """A field that says nothing, something with a control character in it, and too much."""
    return [Refusal({name: bad}, code, text or name) for bad in ("", CONTROL, ENDLESS)]


def request_of(path: str, row: Row, *changes: Change, bench: Bench) -> Message:
    fields = dict(row.request)
    for change in changes:
        fields.update(change(bench) if callable(change) else change)
    document: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None:
            continue
        *outer, last = name.split(".")
        inside = document
        for each in outer:
            inside = inside.setdefault(each, {})
        inside[last] = value
    return json_format.ParseDict(document, message_factory.GetMessageClass(METHODS[path].input_type)())
