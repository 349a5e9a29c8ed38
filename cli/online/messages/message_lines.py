"""Reads messages from lines of text: each line is a body, or a JSON object as `quarry consume --json` writes it."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO, Final, NamedTuple

from quarry_mq.cli.terminal.times import time_ms
from quarry_mq.client.requests import OutgoingMessage
from quarry_mq.protocol.times import TIME_MS_MAX

LINE_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes of a line, at most: a body has at most 4 MiB, which JSON may write with six times as many bytes."""
CHUNK_SIZE: Final = 64 * 1024

_TYPE_FIELDS: Final = ("messageGroup", "deliverAt", "priority", "liteTopic")
FIELDS: Final = frozenset({"body", "bodyBase64", "bodyEncoding", "tag", "keys", "properties", *_TYPE_FIELDS})
IGNORED: Final = frozenset(
    {"topic", "queueId", "queueOffset", "messageId", "bornTimestamp", "storeTimestamp", "deliveryAttempt", "line"}
)
"""Fields of `consume --json` that are ignored: they describe the received message, not the one that is sent."""
PRIORITY_MAX: Final = 2**31 - 1


class LineInvalid(Exception):
    """A line is invalid. The text says why, and names the field if there is one."""


class Line(NamedTuple):
    """Hold one line without its end. `text` None: the line is too long. `position` is the position after its end."""

    number: int
    text: bytes | None
    position: int


def lines_as_they_come(stream: BinaryIO) -> Iterator[list[Line]]:
    """Yield the lines that have arrived, as soon as there are some: no line waits for later ones."""
    rest, number, position, is_too_long = b"", 0, 0, False
    while chunk := stream.read1(CHUNK_SIZE):  # type: ignore[attr-defined]  # of every buffered stream
        *whole, rest = (rest + chunk).split(b"\n")
        found = []
        for text in whole:
            number += 1
            position += len(text) + 1
            found.append(Line(number, None if is_too_long or len(text) > LINE_SIZE_MAX else text, position))
            is_too_long = False
        if len(rest) > LINE_SIZE_MAX:
            position += len(rest)
            rest, is_too_long = b"", True
        if found:
            yield found
    if rest or is_too_long:
        yield [Line(number + 1, None if is_too_long else rest, position + len(rest))]


def message_of_json(text: bytes, given: OutgoingMessage) -> OutgoingMessage:
    """Parse the message of a JSON line; missing fields are taken from `given`. Raises LineInvalid."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise LineInvalid(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise LineInvalid("not a JSON object")
    unknown = sorted(set(fields) - FIELDS - IGNORED)
    if unknown:
        raise LineInvalid(f"{unknown[0]}: no such field; there are: {', '.join(sorted(FIELDS))}")
    said = {name: value for name, value in fields.items() if value is not None}
    kinds = [name for name in _TYPE_FIELDS if name in said]
    if len(kinds) > 1:
        raise LineInvalid(f"{kinds[1]}: not allowed together with {kinds[0]}")
    if kinds:
        given = replace(given, message_group=None, deliver_at_ms=None, priority=None, lite_topic=None)
    return replace(given, **_parts(said, given))


def _parts(said: Mapping[str, Any], given: OutgoingMessage) -> dict[str, Any]:
    parts: dict[str, Any] = {"body": _body(said), "is_compressed": _is_compressed(said)}
    if "tag" in said:
        parts["tag"] = _text(said, "tag")
    if "keys" in said:
        parts["keys"] = _keys(said)
    if "properties" in said:
        parts["properties"] = {**given.properties, **_properties(said)}
    if "messageGroup" in said:
        parts["message_group"] = _text(said, "messageGroup")
    if "liteTopic" in said:
        parts["lite_topic"] = _text(said, "liteTopic")
    if "priority" in said:
        parts["priority"] = _number(said, "priority", PRIORITY_MAX)
    if "deliverAt" in said:
        parts["deliver_at_ms"] = _time_ms(said)
    return parts


def _body(said: Mapping[str, Any]) -> bytes:
    if ("body" in said) == ("bodyBase64" in said):
        raise LineInvalid("body or bodyBase64 is needed, and not both")
    if "body" in said:
        return _text(said, "body").encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(_text(said, "bodyBase64"), validate=True)
    except (binascii.Error, ValueError):
        raise LineInvalid("bodyBase64: not base64") from None


def _is_compressed(said: Mapping[str, Any]) -> bool:
    if said.get("bodyEncoding", "identity") not in ("identity", "gzip"):
        raise LineInvalid("bodyEncoding: must be identity or gzip")
    return said.get("bodyEncoding") == "gzip"


def _keys(said: Mapping[str, Any]) -> tuple[str, ...]:
    keys = said["keys"]
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise LineInvalid("keys: must be a list of strings")
    return tuple(keys)


def _properties(said: Mapping[str, Any]) -> dict[str, str]:
    properties = said["properties"]
    if not isinstance(properties, dict) or not all(isinstance(each, str) for each in properties.values()):
        raise LineInvalid("properties: must be an object of strings")
    return properties


def _time_ms(said: Mapping[str, Any]) -> int:
    value = said["deliverAt"]
    found_ms = time_ms(value) if isinstance(value, str) else _number(said, "deliverAt", TIME_MS_MAX)
    if found_ms is None or not 0 <= found_ms <= TIME_MS_MAX:
        raise LineInvalid("deliverAt: must be ms since 1970, or a date like 2026-11-21T14:30:00+01:00")
    return found_ms


def _text(said: Mapping[str, Any], name: str) -> str:
    if not isinstance(said[name], str):
        raise LineInvalid(f"{name}: must be text")
    return str(said[name])


def _number(said: Mapping[str, Any], name: str, largest: int) -> int:
    value = said[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= largest:
        raise LineInvalid(f"{name}: must be a whole number from 0 to {largest}")
    return value
