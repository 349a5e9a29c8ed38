"""SyncLiteSubscription: a client subscribes to lite topics, or unsubscribes."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from quarry_mq.protocol.limits import WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.cluster.cluster import LiteSpreading
from quarry_mq.server.cluster.peers import LiteChange
from quarry_mq.server.front import Call, Method
from quarry_mq.server.lite.subscriptions import Asking, Done, LiteSubscriptions, Start, StartKind
from quarry_mq.server.metadata import ANYBODY, Directory
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.parsing import parsed
from quarry_mq.server.wire.status import Refused
from quarry_mq.server.wire.validate import check_count, check_group, check_lite_topic, check_topic

_POLICIES: Final = {
    definition.OffsetOption.LAST: StartKind.STANDING,
    definition.OffsetOption.MIN: StartKind.OLDEST,
    definition.OffsetOption.MAX: StartKind.NEWEST,
}
_VALUES: Final = {"offset": StartKind.OFFSET, "tail_n": StartKind.TAIL, "timestamp": StartKind.TIME}


class LiteService:
    """Serves the subscription call of clients of lite topics."""

    def __init__(
        self,
        edge: Edge,
        *,
        directory: Directory,
        subscriptions: LiteSubscriptions,
        limits: WireLimits,
        spreading: LiteSpreading | None = None,
    ) -> None:
        """`spreading` forwards subscriptions to other members; None where there is one member."""
        self._edge = edge
        self._directory = directory
        self._subscriptions = subscriptions
        self._limits = limits
        self._spreading = spreading

    def configure(self, limits: WireLimits) -> None:
        self._limits = limits

    def methods(self) -> dict[str, Method]:
        return {
            "SyncLiteSubscription": self._edge.unary(
                service.SyncLiteSubscriptionRequest, service.SyncLiteSubscriptionResponse, self._synchronize
            )
        }

    def _synchronize(self, call: Call, client_id: str, request: service.SyncLiteSubscriptionRequest) -> None:
        """Change the client's subscriptions.

        The call is answered once they are stored, also by the reachable other members.
        """
        answer = self._edge.later(call, service.SyncLiteSubscriptionResponse())
        spreading = self._spreading
        if spreading is None:
            self._apply(client_id, request, self._edge.user, answer)
            return

        def stored(error: Exception | None) -> None:
            if error is not None:
                answer(error)
            else:
                spreading.tell(LiteChange(client_id, request.SerializeToString()), lambda: answer(None))

        self._apply(client_id, request, self._edge.user, stored)

    def take_told(self, change: LiteChange, done: Done) -> None:
        """Apply a change that another member forwarded, which has let its client in.

        Raises the error of a wrong request.
        """
        request = parsed(service.SyncLiteSubscriptionRequest, change.body)
        self._apply(change.client_id, request, ANYBODY, done)

    def _apply(self, client_id: str, request: service.SyncLiteSubscriptionRequest, user: str, done: Done) -> None:
        check_topic(request.topic.name)
        check_group(request.group.name)
        digest = None
        if request.action == definition.COMPLETE_ADD:
            digest = blake2b(request.SerializeToString(), digest_size=16).digest()
            has_said_it = self._subscriptions.last_said(client_id) == digest
            if has_said_it and self._subscriptions.repeat(self._asking(client_id, request, user), done):
                return
        check_count(request.lite_topic_set, "lite topics")
        removes = request.action in (definition.PARTIAL_REMOVE, definition.COMPLETE_REMOVE)
        if not removes:
            for name in request.lite_topic_set:
                check_lite_topic(name, self._limits)
        start = _start_of(request)
        asking = self._asking(client_id, request, user)
        match request.action:
            case definition.PARTIAL_ADD:
                if asking.terms.wildcard is not None:
                    raise Refused(
                        definition.BAD_REQUEST,
                        f"group {asking.group} gets all lite topics, so its clients cannot subscribe to single ones",
                    )
                self._subscriptions.add(asking, request.lite_topic_set, start, done)
            case definition.PARTIAL_REMOVE:
                self._subscriptions.remove(asking, request.lite_topic_set, done)
            case definition.COMPLETE_ADD:
                self._subscriptions.replace(asking, request.lite_topic_set, done, digest=digest)
            case definition.COMPLETE_REMOVE:
                self._subscriptions.clear(asking, done)
            case _:
                raise Refused(definition.BAD_REQUEST, f"action {request.action} is unknown")

    def _asking(self, client_id: str, request: service.SyncLiteSubscriptionRequest, user: str) -> Asking:
        group, terms = self._directory.lite_group(request.group.name, request.topic.name, user)
        return Asking(group.name, terms, client_id)


def _start_of(request: service.SyncLiteSubscriptionRequest) -> Start:
    """Return the start that a request asks for. Raises Refused for values that make no sense."""
    option = request.offset_option
    kind = option.WhichOneof("offset_type")
    if kind is None:
        return Start.STANDING
    if kind == "policy":
        if option.policy not in _POLICIES:
            raise Refused(definition.BAD_REQUEST, f"offset_option: policy {option.policy} is unknown")
        return Start(_POLICIES[option.policy])
    value: int = getattr(option, kind)
    if value < 0:
        raise Refused(definition.BAD_REQUEST, f"offset_option: {kind} is negative: {value}")
    return Start(_VALUES[kind], value)
