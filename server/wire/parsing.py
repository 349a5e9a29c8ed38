"""Requests out of bytes that came another way than through a front."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from store.errors import Invalid

Request = TypeVar("Request", bound=Message)


def parsed(request_type: type[Request], body: bytes) -> Request:
    """Raises Invalid that names the type."""
    try:
        return request_type.FromString(body)
    except DecodeError:
        raise Invalid(f"no {request_type.__name__}") from None
