"""Call another member of the cluster. Both sides prove that they have the cluster's key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.cluster.service import (
    CHANGE_LITE,
    CONFIRM,
    CONSUMED,
    EXCHANGE,
    FORWARD,
    LEFT_IN_ORDER,
    NUDGE,
    OVERVIEW,
    RELAY,
    from_position,
    to_horizons,
    to_position,
    to_row,
)
from quarry_mq.server.cluster.handover import Consumed, Pair
from quarry_mq.server.cluster.peers import CallEnded, Confirmation, ForwardedSend, LiteChange, RelayedCall
from quarry_mq.server.cluster.reading_order import GroupLeft
from quarry_mq.server.cluster.replication import Page
from quarry_mq.server.cluster.signing import SIGNATURE, ClusterKeys, Headers, Numbers
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.server.process.certificates import PeerTls
from quarry_mq.store.errors import Invalid
from quarry_mq.store.replication import Position

CALL_TIMEOUT_S: Final = 5.0
CONFIRM_TIMEOUT_S: Final = 1.0
FORWARD_TIMEOUT_S: Final = 2.5
"""Seconds until a forwarded call fails. Clients wait longer by default, so lost sends are forwarded again in time."""
ANSWER_SIZE_MAX: Final = 8 * 1024 * 1024
KEEPALIVE_TIME_MS: Final = 5_000
"""Milliseconds until a connection with an unanswered call is tested: its member may be gone without a word."""
KEEPALIVE_TIMEOUT_MS: Final = 2_000
"""Milliseconds for the answer to a test. It does not wait for the member's event loop."""
_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", ANSWER_SIZE_MAX),
    # a member that comes back is called soon, not after minutes
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # also if it comes back with another address: the old one may belong to nobody, and then nothing there says no
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
)

Answer = TypeVar("Answer", bound=Message)
Asked = (
    pb.ExchangeRequest
    | pb.NudgeRequest
    | pb.ConfirmRequest
    | pb.ConsumedRequest
    | pb.ForwardRequest
    | pb.ChangeLiteRequest
    | pb.OverviewRequest
    | pb.LeftInOrderRequest
    | pb.RelayRequest
)


class PeerClient:
    """The admin port of another member. Each call may take some seconds; raises MemberUnreachable with the reason."""

    def __init__(
        self,
        address: str,
        keys: ClusterKeys,
        clock: Clock,
        tls: PeerTls | None = None,
        tls_name: str | None = None,
        *,
        member: str = "",
    ) -> None:
        """`tls_name`: the name in the member's certificate, if it is not the address. `member`: its name, where known.

        Raises MemberUnreachable for a TLS file that cannot be read.
        """
        self._address = address
        self._keys = keys
        self._clock = clock
        self._member = member
        self._numbers = Numbers()
        if tls is None:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        else:
            try:
                credentials = grpc.ssl_channel_credentials(*tls.read())
            except OSError as error:
                raise MemberUnreachable(f"{address}: {error.filename}: {error.strerror}") from None
            named = () if tls_name is None else (("grpc.ssl_target_name_override", tls_name),)
            self._channel = grpc.aio.secure_channel(address, credentials, options=(*_OPTIONS, *named))

    async def exchange(self, name: str, address: str, since: Position | None, rows_max: int) -> Page:
        """Return what has changed at the member since a position. Raises Invalid for an answer that makes no sense."""
        request = pb.ExchangeRequest(
            name=name, address=address, since=None if since is None else from_position(since), rows_max=rows_max
        )
        answer = await self._call(EXCHANGE, request, pb.ExchangeResponse)
        rows = [to_row(each) for each in answer.rows]
        until, told = to_position(answer.until), to_horizons(answer)
        return Page(answer.name, rows, answer.since, until, answer.more, told, answer.is_ready)

    async def nudge(self, name: str, address: str) -> None:
        await self._call(NUDGE, pb.NudgeRequest(name=name, address=address), pb.NudgeResponse)

    async def confirm(self) -> Confirmation:
        """Return which view the member is in."""
        answer = await self._call(CONFIRM, pb.ConfirmRequest(), pb.ConfirmResponse, timeout_s=CONFIRM_TIMEOUT_S)
        return Confirmation(answer.view_id, answer.fence if answer.HasField("fence") else None)

    async def consumed(self, position: int, pairs: Sequence[Pair]) -> Consumed:
        """Return which pairs have consumed all that the member's log holds before the position."""
        request = pb.ConsumedRequest(position=position, pairs=[pb.Pair(group=g, topic=t) for g, t in pairs])
        answer = await self._call(CONSUMED, request, pb.ConsumedResponse)
        return Consumed([Pair(each.group, each.topic) for each in answer.pairs], answer.is_passed)

    async def forward(self, sends: Sequence[ForwardedSend]) -> list[bytes | None]:
        """Return the member's answers to clients' sends. Raises Invalid for a wrong number of answers."""
        request = pb.ForwardRequest(
            sends=[pb.Send(client_id=each.client_id, peer=each.peer, request=each.body) for each in sends]
        )
        answer = await self._call(FORWARD, request, pb.ForwardResponse, timeout_s=FORWARD_TIMEOUT_S)
        if len(answer.answers) != len(sends):
            raise Invalid(f"{self._address}: {len(answer.answers)} answers to {len(sends)} sends")
        return [each.response if each.HasField("response") else None for each in answer.answers]

    async def change_lite(self, change: LiteChange) -> None:
        """Forward a change of a client's lite subscriptions. Raises Invalid if the member refuses it."""
        request = pb.ChangeLiteRequest(client_id=change.client_id, request=change.body)
        await self._call(CHANGE_LITE, request, pb.ChangeLiteResponse)

    async def overview(self) -> bytes:
        """Return the member's overview, a serialized quarry.admin.v1.Overview."""
        answer = await self._call(OVERVIEW, pb.OverviewRequest(), pb.OverviewResponse)
        return answer.overview

    async def left_in_order(self, topic: str) -> list[GroupLeft]:
        """Return the number of messages that each group has still to consume from the topic in order."""
        answer = await self._call(LEFT_IN_ORDER, pb.LeftInOrderRequest(topic=topic), pb.LeftInOrderResponse)
        return [GroupLeft(each.group, each.messages) for each in answer.groups]

    async def relay(self, call: RelayedCall, answered: Callable[[bytes], Awaitable[None]]) -> None:
        """Make a call on the member for an operator, and hand out its answers. Raises CallEnded, too."""
        request = pb.RelayRequest(
            method=call.method, request=call.request, user=call.user, how=call.how, peer=call.peer
        )
        body, headers = self._signed(RELAY, request)
        make: Any = self._channel.unary_stream(RELAY)
        answering = make(body, metadata=headers)
        try:
            await self._take_signed(answering, headers[1][1], answered)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise CallEnded(error.code().name, "a member of an older version makes no calls for others") from None
            raise MemberUnreachable(f"{self._address}: {error.code().name.lower()}: {error.details()}") from None
        finally:
            answering.cancel()

    async def _take_signed(
        self, answering: Any, call_signature: str, answered: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Hand out the answers of a stream, of which none may be missing, until the member says how the call ended."""
        number = 0
        async for message in answering:
            try:
                signed = pb.SignedAnswer.FromString(message)
                self._keys.check_answer(call_signature, signed.body, {SIGNATURE: signed.signature})
                answer = pb.RelayAnswer.FromString(signed.body)
            except DecodeError:
                raise MemberUnreachable(f"{self._address}: the answer is not a RelayAnswer") from None
            number += 1
            if answer.number != number:
                raise NotAMember(f"{self._address}: an answer is missing before number {answer.number}")
            if answer.HasField("ended"):
                if answer.ended.code != grpc.StatusCode.OK.name:
                    raise CallEnded(answer.ended.code, answer.ended.text)
                return
            await answered(answer.answer)
        raise MemberUnreachable(f"{self._address}: the call ended early")

    async def close(self) -> None:
        await self._channel.close()

    def _signed(self, method: str, request: Asked) -> tuple[bytes, Headers]:
        """Number a request, and return its bytes and the headers that prove where it comes from."""
        call_number = self._numbers.next()
        request.once.session, request.once.number = call_number
        request.once.member = self._member
        body = request.SerializeToString()
        return body, self._keys.sign_call(method, body, self._clock.wall_ms() // 1000)

    async def _call(
        self, method: str, request: Asked, answer_type: type[Answer], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Answer:
        body, headers = self._signed(method, request)
        make: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
        call = make(body, metadata=headers, timeout=timeout_s)
        try:
            answered = await call
            trailers = {key: value for key, value in await call.trailing_metadata() if isinstance(value, str)}
        except grpc.aio.AioRpcError as error:
            raise MemberUnreachable(f"{self._address}: {error.code().name.lower()}: {error.details()}") from None
        self._keys.check_answer(headers[1][1], answered, trailers)
        try:
            return answer_type.FromString(answered)
        except DecodeError:
            raise MemberUnreachable(f"{self._address}: the answer is not a {answer_type.__name__}") from None
