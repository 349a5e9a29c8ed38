"""Reading the custom header of a request, and the JSON of its body.

All values of a header are text. A mistake in a value becomes an error that names the field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.store.errors import Invalid

INT32: Final = range(-(1 << 31), 1 << 31)
INT64: Final = range(-(1 << 63), 1 << 63)
DIGITS_MAX: Final = 20

BODY_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of a JSON body: a heartbeat of 1,000 subscriptions has some 200 KiB."""

Json = Any


class RemotingRefused(Invalid):
    """A request breaks a rule of the protocol. `code` is the response code for it."""

    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RemotingRefused:
    """Return the error for a parameter that is missing or wrong."""
    return RemotingRefused(ResponseCode.INVALID_PARAMETER, message)


def text_of(fields: Mapping[str, str], name: str) -> str:
    """Return a required text. Raises RemotingRefused (INVALID_PARAMETER)."""
    value = fields.get(name)
    if not value:
        raise invalid(f"the field {name} is missing")
    return value


def integer_of(fields: Mapping[str, str], name: str, default: int | None = None, *, within: range = INT64) -> int:
    """Return an integer; a field without a default is required. Raises RemotingRefused (INVALID_PARAMETER)."""
    value = fields.get(name)
    if value and len(value) < 10 and value.isascii() and value.isdigit():  # within any range, and nearly every number
        return int(value)
    if not value:
        if default is None:
            raise invalid(f"the field {name} is missing")
        return default
    digits = value.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX
    if not is_number or int(value) not in within:
        raise invalid(f"the field {name} is no integer of {32 if within is INT32 else 64} bits: {value[:DIGITS_MAX]!r}")
    return int(value)


def is_true(fields: Mapping[str, str], name: str) -> bool:
    """Return whether a field is `true`, as Java reads it; a missing field is not."""
    return fields.get(name, "").lower() == "true"


def json_object(body: bytes) -> dict[str, Json]:
    """Return the JSON object of a body. Raises RemotingRefused (INVALID_PARAMETER)."""
    if len(body) > BODY_SIZE_MAX:
        raise invalid(f"a body of {len(body)} bytes; {BODY_SIZE_MAX} are allowed")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("the body is no JSON object")
    return value


def member_text(members: Mapping[str, Json], name: str, default: str = "") -> str:
    """Return a text of a JSON object; null and missing are the default. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise invalid(f"{name} in the body is no text")
    return value


def member_integer(members: Mapping[str, Json], name: str, default: int = 0) -> int:
    """Return an integer of a JSON object; null and missing are the default. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not int or value not in INT64:
        raise invalid(f"{name} in the body is no integer of 64 bits")
    return value


def member_objects(members: Mapping[str, Json], name: str) -> Iterable[dict[str, Json]]:
    """Return the objects of a list in a JSON object; null and missing are an empty list. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise invalid(f"{name} in the body is no list of objects")
    return value


def member_texts(members: Mapping[str, Json], name: str) -> Mapping[str, str]:
    """Return an object of texts in a JSON object; null and missing are an empty one. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise invalid(f"{name} in the body is no object of texts")
    return value
