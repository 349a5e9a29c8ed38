"""The status codes with which calls end."""

from __future__ import annotations

from enum import IntEnum


class GrpcStatus(IntEnum):
    """The gRPC status codes with which a handler may end a call. Business errors are in-band and never use them."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
