"""Asks a live broker quickly for a few names, to help a user who types one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import grpc

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.online.connection.channel import open_channel
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2, settings_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import SecurityServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.settings_pb2_grpc import SettingsServiceStub

TIMEOUT_S: Final = 1.0
NAMES_MAX: Final = 500


def names_of(kind: str, address: str, context: Context | None, *, prefix: str = "") -> Sequence[str]:
    """Return at most `NAMES_MAX` names of a kind (`topic`, `group`, `user`, `setting`) with this prefix.

    The list is empty if the broker does not answer within a second, or refuses: callers can do without names.
    """
    found: list[str] = []
    with suppress(grpc.RpcError, ValueError), open_channel(address, context) as channel:
        for name in islice(_names(kind, channel, prefix), NAMES_MAX):  # what came before an error is kept
            found.append(name)  # noqa: PERF402
    return found


def _names(kind: str, channel: grpc.Channel, prefix: str) -> Iterator[str]:
    stub: Any
    match kind:
        case "topic":
            stub = AdminServiceStub(channel)
            for page in stub.ListTopics(pb.ListTopicsRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.topics)
        case "group":
            stub = AdminServiceStub(channel)
            for page in stub.ListGroups(pb.ListGroupsRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.groups)
        case "user":
            stub = SecurityServiceStub(channel)
            for page in stub.ListUsers(security_pb2.ListUsersRequest(prefix=prefix), timeout=TIMEOUT_S):
                yield from (each.name for each in page.users)
        case "setting":
            stub = SettingsServiceStub(channel)
            for setting in stub.ListSettings(settings_pb2.ListSettingsRequest(), timeout=TIMEOUT_S).settings:
                if setting.key.startswith(prefix):
                    yield setting.key
