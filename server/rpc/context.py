"""The common part of all calls: authentication, limits, and errors that become answers.

Each handler made here answers whatever happens: an error raised while serving becomes the status of an ordinary answer,
since clients take any other gRPC status than OK for a broken network and send the same again.

Limits on what clients may have the broker keep or do are counted here, and refused with TOO_MANY_REQUESTS. Each limit
has a name, which is a label of `quarry_limits_met_total` and a row of docs/limits.md. Refusals by the front itself are
counted in `server.front.contract`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import is_blank
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.signature import AUTHORIZATION, DATE, LANGUAGE
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.errors import OverLimit, PermissionDenied
from quarry_mq.server.front import Call, Method
from quarry_mq.server.front.contract import LOGGED_HEADERS, told_of
from quarry_mq.server.metadata import ANYBODY
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.observability.tracing import TRACEPARENT
from quarry_mq.server.rpc.access import Needs, needs_of
from quarry_mq.server.rpc.plain import PlainCalls, PythonCalls
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.credentials import Identity
from quarry_mq.server.security.gate import Gate
from quarry_mq.server.settings.sections import LimitsSection
from quarry_mq.server.wire.parsing import parse_bounded
from quarry_mq.server.wire.status import Refused, fill_ok, fill_status, is_expected
from quarry_mq.store.native import Native

RATES_KEPT_MAX: Final = 65_536
"""Number of clients whose rate is remembered. A client that was evicted begins with a full second's requests again."""

BURST_S: Final = 1.0


EDGE_LIMITS: Final = (
    "requests_per_client",
    "waiting_sends",
    "waiting_sends_per_client",
    "waiting_polls",
    "waiting_polls_per_client",
    "waiting_filters",
    "clients",
    "streams_per_client",
    "client_topics",
    "subscriptions",
    "in_flight_per_group",
    "topics_per_user",
    "groups_per_user",
    "lite_topics_per_client",
    "lite_topics_per_topic",
    "admin_calls",
    "admin_strangers",
)
"""The limits that are checked outside of the front; `server.front.contract` has the front's."""


class LimitsMet(Counter[str]):
    """The number of times that each limit was met, by the limit's name."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(EDGE_LIMITS, 0))

    def count(self, error: Exception) -> None:
        """Count a refusal if a limit is its reason."""
        if isinstance(error, OverLimit):
            self[error.limit] += 1


class WaitingSizes:
    """Counts the bytes that wait on behalf of clients, in all and for each client, and enforces the limits on them."""

    def __init__(self, name: str, *, total_max: int, client_max: int) -> None:
        """`name` is the name of the limit in all; the limit of each client has the suffix `_per_client`."""
        self._name = name
        self._sizes: dict[str, int] = {}
        self._total = 0
        self.configure(total_max=total_max, client_max=client_max)

    def configure(self, *, total_max: int, client_max: int) -> None:
        self._total_max = total_max
        self._client_max = client_max

    @property
    def total(self) -> int:
        return self._total

    def take(self, client_id: str, size: int) -> None:
        """Add waiting bytes of a client.

        Raises OverLimit, unless none are waiting: a request of allowed size must pass.
        """
        waiting = self._sizes.get(client_id, 0)
        if waiting and waiting + size > self._client_max:
            raise OverLimit(f"{self._name}_per_client", f"{waiting} bytes of this client are already waiting")
        if self._total and self._total + size > self._total_max:
            raise OverLimit(self._name, f"{self._total} bytes of all clients are already waiting")
        self._sizes[client_id] = waiting + size
        self._total += size

    def give(self, client_id: str, size: int) -> None:
        """Subtract waiting bytes of a client."""
        self._total -= size
        left = self._sizes.get(client_id, 0) - size
        if left:
            self._sizes[client_id] = left
        else:  # also after a request without bytes, when all others have ended
            self._sizes.pop(client_id, None)


class RequestRates:
    """Limits the requests per second of each client; 0 means any number."""

    def __init__(self, clock: Clock, per_second: int) -> None:
        self._clock = clock
        self._free_at_s: OrderedDict[str, float] = OrderedDict()
        """The time, for each client, when its allowed rate has caught up with its requests so far."""
        self.configure(per_second)

    def configure(self, per_second: int) -> None:
        self._interval_s = 1 / per_second if per_second else 0.0
        self._free_at_s.clear()

    def request(self, client_id: str) -> None:
        """Count a request of a client. Raises OverLimit when it was a second's requests ahead of its rate."""
        if not self._interval_s:
            return
        now_s = self._clock.monotonic_s()
        free_at_s = max(now_s, self._free_at_s.get(client_id, 0.0)) + self._interval_s
        if free_at_s - self._interval_s / 2 > now_s + max(BURST_S, self._interval_s):  # half: sums are not exact
            raise OverLimit("requests_per_client", "flow limit: this client makes too many requests per second")
        self._free_at_s[client_id] = free_at_s
        self._free_at_s.move_to_end(client_id)
        if len(self._free_at_s) > RATES_KEPT_MAX:
            self._free_at_s.popitem(last=False)


CLIENT_ID: Final = "x-mq-client-id"
GATHERED_SIZE_MAX: Final = 16 * 1024
"""Largest request in bytes that may wait for the end of the loop iteration, to be served together with others.

A larger one is served in the turn of the address that sent it, so that its cost counts for that address.
"""

HEADERS: Final = frozenset({CLIENT_ID, LANGUAGE, AUTHORIZATION, DATE, TRACEPARENT, *LOGGED_HEADERS.values()})
"""All headers of a call that are read, for fronts that keep no others (`tests/house/test_headers.py`)."""

DEFAULT_REQUEST_TIMEOUT_MS: Final = 3_000  # every official client's default
CLIENT_ID_SIZE_MAX: Final = 1024
"""Bytes of a client's id. Libraries use up to a few hundred; the registry stores ids, so their size needs a limit."""


class Answer(Protocol):
    """A response message: all of them begin with a status."""

    @property
    def status(self) -> definition.Status: ...

    def SerializeToString(self) -> bytes: ...


RequestHandler = Callable[[Call, "Identity | None", str, bytes], None]
"""Answers a request of a caller that was let in, whatever happens.

The arguments are the call, the identity, the client's id and the bytes.
"""

Check = Callable[[], None]
"""Raises an error if a call may not continue."""

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Answer)


def client_id_of(call: Call) -> str:
    """Return the caller's id. Raises Refused (CLIENT_ID_REQUIRED) when the header is missing or blank."""
    client_id = call.header(CLIENT_ID) or ""
    if is_blank(client_id):
        raise Refused(definition.CLIENT_ID_REQUIRED, f"client id cannot be empty: the header {CLIENT_ID} is missing")
    if len(client_id) > CLIENT_ID_SIZE_MAX:
        raise Refused(definition.BAD_REQUEST, f"the header {CLIENT_ID} has more than {CLIENT_ID_SIZE_MAX} characters")
    return client_id


class Edge:
    """Makes handlers for a front out of functions that take a parsed request and raise errors.

    A function gets the call, the client's id and the request. It may return the response, or None to answer the call
    later; then it uses `refuse_unary` or `refuse_stream` for its own errors.
    """

    def __init__(
        self,
        clients: ClientRegistry,
        error_reporter: ErrorReporter,
        gate: Gate[Call] | None = None,
        *,
        rates: RequestRates | None = None,
        limits_met: LimitsMet | None = None,
        native: Native | None = None,
    ) -> None:
        """A `gate` of None allows every caller everything. `native` counts fields of large requests."""
        self.clients: Final = clients
        self.error_reporter: Final = error_reporter
        self.limits_met: Final = LimitsMet() if limits_met is None else limits_met
        self._rates = rates
        self.native: Final = native
        self.plain: Final[PlainCalls] = PythonCalls() if native is None else native
        """Reads and answers plain calls."""
        self.gate = gate
        self.user = ANYBODY
        """The user whose call is being served; valid only while it is, on the one thread there is."""
        self._identity: Identity | None = None
        """The authenticated identity of the same user."""

    def configure(self, limits: LimitsSection) -> None:
        """Apply changed limits from now on."""
        if self._rates is not None:
            self._rates.configure(limits.requests_per_client)

    def identify(self, call: Call) -> Identity | None:
        """Return the caller's identity; None without access control. Raises Unauthenticated, TooManyFailures."""
        return None if self.gate is None else self.gate.identify(call)

    def caller(self, call: Call, identity: Identity | None) -> str:
        """Return the client's id, and note a sign of life of that client.

        Raises Refused, PermissionDenied, OverLimit.
        """
        client_id = client_id_of(call)
        self.user, self._identity = ANYBODY if identity is None else identity.user, identity
        if self.gate is not None and identity is not None:
            self.gate.require_own(call, identity, client_id, self.clients.owner_of(client_id))
        self.clients.touch(client_id)
        if self._rates is not None:
            self._rates.request(client_id)
        return client_id

    def parse(self, request_type: type[RequestT], body: bytes) -> RequestT:
        """Parse the request of a caller that was let in. Raises DecodeError, Refused."""
        return parse_bounded(request_type, body, self.native)

    def authorize(self, call: Call, identity: Identity | None, needs: Needs, request: Message) -> None:
        """Check the rights that a request needs. Raises PermissionDenied, Refused."""
        if identity is not None:
            self.require(call, identity, needs(request))

    def require(self, call: Call, identity: Identity, needs: Iterable[Need]) -> None:
        """Check that an identity has the needed rights. Raises PermissionDenied."""
        if self.gate is not None:
            self.gate.authorize(call, identity, needs)

    def to_ask_again(self, call: Call, request: Message) -> Check:
        """Return a function that checks later whether the present caller still has the rights for its request.

        The function costs little until rights change, and raises PermissionDenied.
        """
        gate, identity = self.gate, self._identity
        if gate is None or identity is None:
            return _nobody_asks
        needs, generation, peer = list(needs_of(type(request))(request)), gate.generation, call.peer

        def ask_again() -> None:
            if gate.generation != generation:
                gate.check(identity, peer, needs)

        return ask_again

    def may(self, call: Call, need: Need) -> bool:
        """Return whether the caller has a right that the call itself does not need."""
        if self.gate is None:
            return True
        try:
            self.gate.check(self.gate.identify(call), call.peer, [need])
        except PermissionDenied:
            return False
        return True

    def unary(
        self,
        request_type: type[RequestT],
        answer_type: type[AnswerT],
        serve: Callable[[Call, str, RequestT], AnswerT | None],
    ) -> Method:
        """Make the handler of a call with one request and one response."""
        serve_admitted = self.unary_admitted(request_type, answer_type, serve)

        def handler(call: Call, body: bytes) -> None:
            try:
                # before the parsing: an unauthenticated caller gets no other answer
                identity = self.identify(call)
                client_id = self.caller(call, identity)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
                self.refuse_unary(call, answer_type, error)
            else:
                serve_admitted(call, identity, client_id, body)

        return Method(handler, admit=partial(self._admit, partial(self.refuse_unary, answer_type=answer_type)))

    def _admit(self, refuse: Callable[..., None], call: Call) -> None:
        """Refuse an unauthenticated call before its request arrives.

        Handlers authenticate, too, since most requests arrive together with their headers.
        """
        try:
            self.identify(call)
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
            refuse(call, error=error)

    def unary_admitted(
        self,
        request_type: type[RequestT],
        answer_type: type[AnswerT],
        serve: Callable[[Call, str, RequestT], AnswerT | None],
    ) -> RequestHandler:
        """Return the part of `unary` that follows once the caller is let in."""
        needs = needs_of(request_type)

        def serve_admitted(call: Call, identity: Identity | None, client_id: str, body: bytes) -> None:
            try:
                request = self.parse(request_type, body)
                self.authorize(call, identity, needs, request)
                answer = serve(call, client_id, request)
                if answer is not None:
                    call.reply(answer.SerializeToString())
            except Exception as error:  # noqa: BLE001 - as in `unary`
                self.refuse_unary(call, answer_type, error)

        return serve_admitted

    def server_stream(
        self,
        request_type: type[RequestT],
        answer_type: type[AnswerT],
        serve: Callable[[Call, str, RequestT], None],
        last_item: Callable[[], bytes] | None = None,
    ) -> Method:
        """Make the handler of a call with one request and a stream of answers, which `serve` sends and finishes.

        An error becomes a status item, followed by `last_item()` where the stream must end with one.
        """
        needs = needs_of(request_type)

        def handler(call: Call, body: bytes) -> None:
            try:
                identity = self.identify(call)
                client_id = self.caller(call, identity)
                request = self.parse(request_type, body)
                self.authorize(call, identity, needs, request)
                serve(call, client_id, request)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, the client gets an answer
                self.refuse_stream(call, answer_type, error, last_item)

        refuse = partial(self.refuse_stream, answer_type=answer_type, last_item=last_item)
        return Method(handler, streaming_out=True, admit=partial(self._admit, refuse))

    def later(self, call: Call, answer: Answer) -> Callable[[Exception | None], None]:
        """Return a function that answers the call later: with `answer` and OK, or with the error as status."""
        return partial(self._answer_later, call, answer)

    def _answer_later(self, call: Call, answer: Answer, error: Exception | None) -> None:
        if error is not None:
            self.refuse_unary(call, type(answer), error)
            return
        fill_ok(answer.status)
        call.reply(answer.SerializeToString())

    def refuse_unary(self, call: Call, answer_type: type[AnswerT], error: Exception) -> None:
        """Answer a call with the error as status. Faults of the broker are reported."""
        self.report(call, error)
        answer = answer_type()
        fill_status(answer.status, error)
        call.reply(answer.SerializeToString())

    def refusal(self, answer_type: type[AnswerT], error: Exception, **where: object) -> bytes:
        """Return the refusal of a call that another member forwarded; `where` describes the call in an error report."""
        self.limits_met.count(error)
        if not is_expected(error):
            self.error_reporter.report(error, **where)
        answer = answer_type()
        fill_status(answer.status, error)
        return answer.SerializeToString()

    def refuse_stream(
        self, call: Call, answer_type: type[AnswerT], error: Exception, last_item: Callable[[], bytes] | None = None
    ) -> None:
        """End a stream with the error as status item. Faults of the broker are reported."""
        self.report(call, error)
        answer = answer_type()
        fill_status(answer.status, error)
        call.send(answer.SerializeToString())
        if last_item is not None:
            call.send(last_item())
        call.finish()

    def report(self, call: Call, error: Exception) -> None:
        """Log an error that is a fault of the broker, and count one that comes from a limit."""
        self.limits_met.count(error)
        if not is_expected(error):
            self.error_reporter.report(error, **told_of(call))


def _nobody_asks() -> None:
    """Allow everything: the check where there is no access control."""
