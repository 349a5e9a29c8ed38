"""Serve `quarry.cluster.v1.ClusterService`, for the other members of this broker's cluster.

It works on bytes, because the signature is of the bytes that were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.calls.edge import refuse
from quarry_mq.server.admin_port.calls.guard import member_known
from quarry_mq.server.cluster.handover import Consumed, Pair
from quarry_mq.server.cluster.peers import CallEnded, Confirmation, ForwardedSend, LiteChange, RelayedCall
from quarry_mq.server.cluster.reading_order import GroupLeft
from quarry_mq.server.cluster.replication import Exchange
from quarry_mq.server.cluster.signing import ClusterKeys, Number, Replays
from quarry_mq.server.errors import NotAMember
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.wire.parsing import parsed
from quarry_mq.store.errors import Invalid
from quarry_mq.store.replication import Horizons, Position, SharedRow, Version, known_kind

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["ClusterService"].full_name
EXCHANGE: Final = f"/{SERVICE}/Exchange"
NUDGE: Final = f"/{SERVICE}/Nudge"
CONFIRM: Final = f"/{SERVICE}/Confirm"
CONSUMED: Final = f"/{SERVICE}/Consumed"
FORWARD: Final = f"/{SERVICE}/Forward"
CHANGE_LITE: Final = f"/{SERVICE}/ChangeLite"
OVERVIEW: Final = f"/{SERVICE}/Overview"
LEFT_IN_ORDER: Final = f"/{SERVICE}/LeftInOrder"
RELAY: Final = f"/{SERVICE}/Relay"


HORIZONS_MAX: Final = 1_000


def to_row(message: pb.Row) -> SharedRow:
    """Translate a row. The store checks its content and kind, since a newer version may know more kinds."""
    return SharedRow(
        kind=known_kind(message.kind),
        name=message.name,
        version=_version(message.version),
        based_on=_version(message.based_on) if message.HasField("based_on") else None,
        value=message.value if message.HasField("value") else None,
        seen=tuple(map(_version, message.seen)),
    )


def from_row(row: SharedRow) -> pb.Row:
    return pb.Row(
        kind=row.kind,
        name=row.name,
        version=_from_version(row.version),
        based_on=None if row.based_on is None else _from_version(row.based_on),
        value=row.value,
        seen=map(_from_version, row.seen),
    )


def to_position(message: pb.Position) -> Position:
    return Position(message.incarnation, message.sequence)


def from_position(position: Position) -> pb.Position:
    return pb.Position(incarnation=position.incarnation, sequence=position.sequence)


def to_horizons(message: pb.ExchangeResponse) -> Horizons:
    """Translate horizons; they are empty from a member of an older version. Raises Invalid for too many members."""
    if len(message.known) + len(message.forgotten) > 2 * HORIZONS_MAX:
        raise Invalid(f"a page names more than {HORIZONS_MAX} members")
    return Horizons(
        {each.name: each.sequence for each in message.known}, {each.name: each.sequence for each in message.forgotten}
    )


def from_horizons(here: Mapping[str, int]) -> Iterator[pb.Horizon]:
    return (pb.Horizon(name=name, sequence=sequence) for name, sequence in here.items())


def _version(message: pb.Version) -> Version:
    return Version(message.time_ms, message.counter, message.member)


def _from_version(version: Version) -> pb.Version:
    return pb.Version(time_ms=version.time_ms, counter=version.counter, member=version.member)


CHANGES: Final = (FORWARD, CHANGE_LITE, RELAY)
"""Calls that would do their work again if the same bytes were sent again."""

ROWS_MAX: Final = 1_000
PAIRS_MAX: Final = 1_000

Request = TypeVar("Request", bound=Message)
Outcome = TypeVar("Outcome")


class GroupCalls(NamedTuple):
    """The functions that answer members' calls about message groups and lite topics, and those for operators."""

    confirmation: Callable[[], Confirmation]
    consumed: Callable[[int, Sequence[Pair]], Consumed]
    take_forwarded: Callable[[ForwardedSend, Callable[[bytes | None], None]], None]
    change_lite: Callable[[LiteChange, Callable[[Exception | None], None]], None]
    overview: Callable[[], bytes]
    left_in_order: Callable[[str], Awaitable[list[GroupLeft]]]
    relayed: Callable[[RelayedCall, Callable[[bytes], Awaitable[None]]], Awaitable[None]]


class ClusterService:
    """Answers the calls of other members."""

    def __init__(
        self, exchange: Exchange, groups: GroupCalls, keys: ClusterKeys, clock: Clock, error_reporter: ErrorReporter
    ) -> None:
        self._exchange = exchange
        self._groups = groups
        self._keys = keys
        self._clock = clock
        self._replays = Replays(clock)
        self._error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        handlers = {
            EXCHANGE: self._checked(EXCHANGE, pb.ExchangeRequest, self._answer_exchange),
            NUDGE: self._checked(NUDGE, pb.NudgeRequest, self._answer_nudge),
            CONFIRM: self._checked(CONFIRM, pb.ConfirmRequest, self._answer_confirm),
            CONSUMED: self._checked(CONSUMED, pb.ConsumedRequest, self._answer_consumed),
            FORWARD: self._checked(FORWARD, pb.ForwardRequest, self._answer_forward),
            CHANGE_LITE: self._checked(CHANGE_LITE, pb.ChangeLiteRequest, self._answer_change_lite),
            OVERVIEW: self._checked(OVERVIEW, pb.OverviewRequest, self._answer_overview),
            LEFT_IN_ORDER: self._checked(LEFT_IN_ORDER, pb.LeftInOrderRequest, self._answer_left_in_order),
            RELAY: grpc.unary_stream_rpc_method_handler(self._relay),
        }
        by_name = {path.rpartition("/")[2]: handler for path, handler in handlers.items()}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, by_name),))
        return SERVICE

    def _checked(
        self, method: str, request_type: type[Request], answer: Callable[[Request], Awaitable[Message]]
    ) -> Any:
        async def call(body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            try:
                request, signature = self._admit(method, request_type, body, context)
                answered = (await answer(request)).SerializeToString()
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
                await refuse(context, error, self._error_reporter)
            context.set_trailing_metadata(self._keys.sign_answer(signature, answered))
            return answered

        return grpc.unary_unary_rpc_method_handler(call)

    def _admit(
        self, method: str, request_type: type[Request], body: bytes, context: grpc.aio.ServicerContext[Any, Any]
    ) -> tuple[Request, str]:
        """Return the request of a member and its signature. Raises NotAMember, OverLimit, Invalid."""
        headers = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        signature = self._keys.check_call(method, body, headers, self._clock.wall_ms() // 1000)
        request = parsed(request_type, body)
        self._require_once(method, request, signature)
        member_known()
        return request, signature

    async def _relay(self, body: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Make a call for an operator who asked another member; each message of the answer is signed."""
        try:
            request, signature = self._admit(RELAY, pb.RelayRequest, body, context)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the caller gets an answer
            await refuse(context, error, self._error_reporter)
        numbers = count(1)

        async def write(answer: pb.RelayAnswer) -> None:
            answer.number = next(numbers)
            content = answer.SerializeToString()
            ((_, signed),) = self._keys.sign_answer(signature, content)
            await context.write(pb.SignedAnswer(body=content, signature=signed).SerializeToString())

        async def answered(answer: bytes) -> None:
            await write(pb.RelayAnswer(answer=answer))

        call = RelayedCall(request.method, request.request, request.user, request.how, request.peer)
        try:
            await self._groups.relayed(call, answered)
            ended = pb.Ended(code=grpc.StatusCode.OK.name)
        except CallEnded as failure:
            ended = pb.Ended(code=failure.code, text=str(failure))
        await write(pb.RelayAnswer(ended=ended))

    def _require_once(self, method: str, request: Any, signature: str) -> None:
        """Check that the call is new and meant for this member. Raises NotAMember otherwise."""
        if request.HasField("once"):
            once = request.once
            if once.member and once.member != self._exchange.own_name:
                raise NotAMember(f"the call was meant for member {once.member[:80]!r}")
            self._replays.take(Number(once.session, once.number))
        elif method in CHANGES:
            self._replays.take_unnumbered(signature)

    async def _answer_exchange(self, request: pb.ExchangeRequest) -> pb.ExchangeResponse:
        since = to_position(request.since) if request.HasField("since") else None
        page = self._exchange.asked(request.name, request.address, since, min(request.rows_max or ROWS_MAX, ROWS_MAX))
        return pb.ExchangeResponse(
            name=page.name,
            rows=map(from_row, page.rows),
            since=page.since,
            until=from_position(page.until),
            more=page.more,
            known=from_horizons(page.told.known),
            forgotten=from_horizons(page.told.forgotten),
            is_ready=page.is_ready,
        )

    async def _answer_nudge(self, request: pb.NudgeRequest) -> pb.NudgeResponse:
        self._exchange.nudged(request.name, request.address)
        return pb.NudgeResponse()

    async def _answer_confirm(self, _request: pb.ConfirmRequest) -> pb.ConfirmResponse:
        confirmation = self._groups.confirmation()
        return pb.ConfirmResponse(view_id=confirmation.view_id, fence=confirmation.fence)

    async def _answer_consumed(self, request: pb.ConsumedRequest) -> pb.ConsumedResponse:
        if len(request.pairs) > PAIRS_MAX:
            raise Invalid(f"{len(request.pairs)} pairs, at most {PAIRS_MAX} are allowed")
        pairs, is_passed = self._groups.consumed(
            request.position, [Pair(each.group, each.topic) for each in request.pairs]
        )
        return pb.ConsumedResponse(pairs=[pb.Pair(group=g, topic=t) for g, t in pairs], is_passed=is_passed)

    async def _answer_forward(self, request: pb.ForwardRequest) -> pb.ForwardResponse:
        """Answer when all sends are stored, or refused."""
        loop = asyncio.get_running_loop()
        outcomes: list[asyncio.Future[bytes | None]] = []
        for each in request.sends:
            outcome: asyncio.Future[bytes | None] = loop.create_future()
            outcomes.append(outcome)
            self._groups.take_forwarded(
                ForwardedSend(each.client_id, each.peer, each.request), partial(_settle, outcome)
            )
        return pb.ForwardResponse(answers=[pb.Answer(response=each) for each in await asyncio.gather(*outcomes)])

    async def _answer_change_lite(self, request: pb.ChangeLiteRequest) -> pb.ChangeLiteResponse:
        """Answer when the change is stored."""
        outcome: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._groups.change_lite(LiteChange(request.client_id, request.request), partial(_settle, outcome))
        error = await outcome
        try:
            if error is not None:
                raise error
        finally:
            del error, outcome  # they refer to this frame
        return pb.ChangeLiteResponse()

    async def _answer_overview(self, _request: pb.OverviewRequest) -> pb.OverviewResponse:
        return pb.OverviewResponse(overview=self._groups.overview())

    async def _answer_left_in_order(self, request: pb.LeftInOrderRequest) -> pb.LeftInOrderResponse:
        left = await self._groups.left_in_order(request.topic)
        return pb.LeftInOrderResponse(groups=[pb.GroupLeft(group=each.group, messages=each.messages) for each in left])


def _settle(outcome: asyncio.Future[Outcome], answer: Outcome) -> None:
    if not outcome.cancelled():  # the caller may have given up
        outcome.set_result(answer)
