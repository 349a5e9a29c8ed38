"""SyncLiteSubscription: a client says which lite topics it wants."""

from __future__ import annotations

from typing import Final

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.front import Call, Method
from server.lite.starts import Start, StartKind
from server.lite.subscriptions import Asking, LiteSubscriptions
from server.metadata import Directory
from server.rpc.context import Edge
from server.wire.limits import WireLimits
from server.wire.status import Refused
from server.wire.validate import check_count, check_group, check_lite_topic, check_topic

_POLICIES: Final = {
    definition.OffsetOption.LAST: StartKind.STANDING,
    definition.OffsetOption.MIN: StartKind.OLDEST,
    definition.OffsetOption.MAX: StartKind.NEWEST,
}
_VALUES: Final = {"offset": StartKind.OFFSET, "tail_n": StartKind.TAIL, "timestamp": StartKind.TIME}


class LiteService:
    """The call of clients of lite topics."""

    def __init__(
        self, edge: Edge, *, directory: Directory, subscriptions: LiteSubscriptions, limits: WireLimits
    ) -> None:
        self._edge = edge
        self._directory = directory
        self._subscriptions = subscriptions
        self._limits = limits

    def configure(self, limits: WireLimits) -> None:
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        return {
            "SyncLiteSubscription": Method(
                self._edge.unary(
                    service.SyncLiteSubscriptionRequest, service.SyncLiteSubscriptionResponse, self._synchronize
                )
            )
        }

    def _synchronize(self, call: Call, client_id: str, request: service.SyncLiteSubscriptionRequest) -> None:
        """Answered when it is stored."""
        check_topic(request.topic.name)
        check_group(request.group.name)
        check_count(request.lite_topic_set, "lite topics")
        removes = request.action in (definition.PARTIAL_REMOVE, definition.COMPLETE_REMOVE)
        if not removes:
            for name in request.lite_topic_set:
                check_lite_topic(name, self._limits)
        start = _start_of(request)
        group, terms = self._directory.lite_group(request.group.name, request.topic.name, self._edge.user)
        asking = Asking(group.name, terms, client_id)
        done = self._edge.later(call, service.SyncLiteSubscriptionResponse())
        match request.action:
            case definition.PARTIAL_ADD:
                if terms.wildcard is not None:
                    raise Refused(definition.BAD_REQUEST, f"group {group.name} gets lite topics without naming them")
                self._subscriptions.add(asking, request.lite_topic_set, start, done)
            case definition.PARTIAL_REMOVE:
                self._subscriptions.remove(asking, request.lite_topic_set, done)
            case definition.COMPLETE_ADD:
                self._subscriptions.replace(asking, request.lite_topic_set, done)
            case definition.COMPLETE_REMOVE:
                self._subscriptions.clear(asking, done)
            case _:
                raise Refused(definition.BAD_REQUEST, f"action {request.action} is not known")


def _start_of(request: service.SyncLiteSubscriptionRequest) -> Start:
    """Raises Refused for what cannot be meant."""
    option = request.offset_option
    kind = option.WhichOneof("offset_type")
    if kind is None:
        return Start.STANDING
    if kind == "policy":
        if option.policy not in _POLICIES:
            raise Refused(definition.BAD_REQUEST, f"offset_option: policy {option.policy} is not known")
        return Start(_POLICIES[option.policy])
    value: int = getattr(option, kind)
    if value < 0:
        raise Refused(definition.BAD_REQUEST, f"offset_option: {kind} is negative: {value}")
    return Start(_VALUES[kind], value)
