"""Joins all calls of the messaging service by their full path, for a front to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.front import Method, Methods

_SERVICE: Final = service.DESCRIPTOR.services_by_name["MessagingService"]
METHOD_NAMES: Final = frozenset(_SERVICE.methods_by_name)


SMALL_REQUEST_SIZE: Final = 64 * 1024
"""Bytes that suffice for requests that name topics, groups, messages and a filter of 4,096 characters."""

REQUEST_SIZES: Final[Mapping[str, int | None]] = {
    "SendMessage": None,
    "AckMessage": 2 * 1024 * 1024,
    "Telemetry": 4 * 1024 * 1024,
    "SyncLiteSubscription": 4 * 1024 * 1024,
}
"""Bytes of the requests that may be larger; None: as many as the front takes.

An acknowledgement has 4,096 entries of 512 bytes, settings have 4,096 topics with their filters, and a client's answer
has all of its threads. Lite topics have 64 bytes each, and a group's quota limits their number.
"""


def messaging_methods(*parts: Mapping[str, Method]) -> Methods:
    """Join the services' methods (by short name) into those of the whole service (by full path).

    Raises ValueError unless the parts hold every method of the protocol exactly once, streaming as the protocol says.
    """
    names = [name for part in parts for name in part]
    twice = {name for name in names if names.count(name) > 1}
    if twice or set(names) != METHOD_NAMES:
        raise ValueError(
            f"methods served twice: {sorted(twice)}, not at all: {sorted(METHOD_NAMES - set(names))}, "
            f"unknown: {sorted(set(names) - METHOD_NAMES)}"
        )
    methods = {name: method for part in parts for name, method in part.items()}
    for name, method in methods.items():
        descriptor = _SERVICE.methods_by_name[name]
        if (method.streaming_in, method.streaming_out) != (descriptor.client_streaming, descriptor.server_streaming):
            raise ValueError(f"{name} does not stream as the protocol says")
    return {
        f"/{_SERVICE.full_name}/{name}": replace(method, size_max=REQUEST_SIZES.get(name, SMALL_REQUEST_SIZE))
        for name, method in methods.items()
    }
