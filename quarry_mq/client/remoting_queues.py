"""Reads queues of RocketMQ by their offsets, over the remoting protocol: no consumer group keeps state of it.

Name servers say which brokers have a topic. Calls are repeated for a while when a broker is away or overloaded.
"""

from __future__ import annotations

import json
import re
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from struct import Struct
from threading import Event
from typing import Any, Final, NamedTuple, Self, TypeVar

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.queues import TIMEOUT_MS, Retries, RoutedQueue, Start
from quarry_mq.client.remoting import RemotingClient, RemotingFailed, checked
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.messages.system_flag import BORN_HOST_V6
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.protocol.remoting.frames import Command, FrameMalformed

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""The group of RocketMQ's own tools. Every broker of RocketMQ has it, also one that creates no groups."""

PULLED_AT_ONCE: Final = 1_024
"""Messages that one pull asks for, at most. Brokers give 32 unless configured otherwise, and 8 of old messages."""
PULLS_UNDER_WAY: Final = 16
"""Pulls of one queue that wait for their answers at the same time."""

_READ: Final = 4
_MASTER: Final = "0"
_HAS_SUBSCRIPTION: Final = 4
_GO_AWAY: Final = 1500
_RETRIED: Final = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, _GO_AWAY}
)
_PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
_NUMBER_AS_KEY: Final = re.compile(r"([{,])(\d+):")
_SIZE: Final = Struct(">i")
_QUEUE_OFFSET: Final = Struct(">q")
_QUEUE_OFFSET_POSITION: Final = 20
_SYSTEM_FLAG: Final = Struct(">i")
_SYSTEM_FLAG_POSITION: Final = 36
_STORE_TIMESTAMP: Final = Struct(">q")
_STORE_TIMESTAMP_POSITIONS: Final = (56, 68)
"""Positions in a record (docs/formats/commit-log.md), the last one with a born host of IPv4 or IPv6."""

_Answer = TypeVar("_Answer")


class PulledRecords(NamedTuple):
    """The answer to a pull: stored records, one after the other. `is_outside`: the queue does not have the offset.

    Reading can go on at `following`.
    """

    records: bytes
    begin: int
    following: int
    is_outside: bool


class RemotingQueues:
    """Reads queues from one thread. It must be closed.

    Calls raise RemotingFailed when a broker refuses for good, BrokerUnreachable when `timeout_ms` is over.
    """

    def __init__(
        self,
        name_servers: Sequence[Endpoint],
        *,
        group: str = TOOLS_GROUP,
        addresses: Mapping[str, str] | None = None,
        timeout_ms: int = TIMEOUT_MS,
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing yet. `group` is named in pulls. `addresses` are those of known brokers, by their names.

        All servers have the user and the files for TLS of the first. Raises OSError for a file that cannot be read.
        """
        self._name_servers = [endpoint.address for endpoint in name_servers]
        self._endpoint = name_servers[0]
        self._tls = _tls(self._endpoint) if self._endpoint.tls else None
        self._group = group
        self.addresses = dict(addresses or {})
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._closed = Event()
        self._clients: dict[str, RemotingClient] = {}
        self._topics: set[str] = set()
        self._strides: dict[str, int] = {}
        """Messages that a broker gives for one pull, as last seen."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        for address in list(self._clients):
            self._drop(address)

    # -- name servers

    def topic_names(self) -> list[str]:
        """Return the names of all topics, those of the brokers themselves included."""
        answer = self._ask_names("topics", lambda client: client.call(RequestCode.GET_ALL_TOPICS_FROM_NAME_SERVER))
        return list(json.loads(answer.body)["topicList"])

    def routes(self, topics: Sequence[str]) -> dict[str, list[RoutedQueue]]:
        """Return the readable queues of each topic, in the order of brokers and numbers. Unknown topics are left out.

        A topic that was there before is waited for: name servers forget it while its only broker restarts.
        """
        fields = [{"topic": topic, "acceptStandardJsonOnly": "true"} for topic in topics]

        def call(client: RemotingClient) -> dict[str, list[RoutedQueue]]:
            found = {}
            answers = client.call_all(RequestCode.GET_ROUTE_BY_TOPIC, fields)
            for topic, answer in zip(topics, answers, strict=True):
                if answer.code != ResponseCode.TOPIC_NOT_EXIST:
                    found[topic] = _queues_of(topic, checked(answer, f"topic {topic}"))
                elif topic in self._topics:
                    raise ConnectionError(f"no broker has topic {topic} now")
            return found

        found = self._ask_names(f"topic {topics[0]}", call) if topics else {}
        self._topics |= found.keys()
        self.addresses |= {queue.broker: queue.address for route in found.values() for queue in route}
        return found

    def _ask_names(self, what: str, call: Callable[[RemotingClient], _Answer]) -> _Answer:
        """Ask the name servers in turn until one answers."""
        retries = self._retries()
        while True:
            errors = []
            for address in self._name_servers:
                try:
                    return call(self._client(address))
                except (OSError, FrameMalformed) as error:
                    self._drop(address)
                    errors.append(f"{address}: {error}")
            retries.wait(f"{what}: {'; '.join(errors)}")

    # -- offsets

    def offsets_of(
        self, broker: str, queues: Iterable[tuple[str, int]], where: Start | int
    ) -> dict[tuple[str, int], int]:
        """Return the first offset of queues of a broker, their end, or their offset at a time in ms.

        A queue is a topic and a number.
        """
        wanted = list(queues)
        if not isinstance(where, Start):
            return self._offsets_at(broker, wanted, where)
        code = RequestCode.GET_MIN_OFFSET if where is Start.EARLIEST else RequestCode.GET_MAX_OFFSET
        return self._ask_offsets(broker, code, wanted)

    def _ask_offsets(
        self, broker: str, code: RequestCode, queues: Sequence[tuple[str, int]], **more: str
    ) -> dict[tuple[str, int], int]:
        fields = [{"topic": topic, "queueId": str(number), **more} for topic, number in queues]

        def call(client: RemotingClient) -> dict[tuple[str, int], int]:
            answers = client.call_all(code, fields)
            return {
                queue: int(checked(answer, _named(broker, *queue)).fields["offset"])
                for queue, answer in zip(queues, answers, strict=True)
            }

        return self._ask(broker, queues[0][0], "offsets", call) if queues else {}

    def _offsets_at(self, broker: str, queues: Sequence[tuple[str, int]], time_ms: int) -> dict[tuple[str, int], int]:
        """Return the offset of the first message of each queue that was stored at a time or later, or the end.

        RocketMQ 4 answers with the nearest message, which may be the one before, and of messages of one millisecond
        with any. So the answer is where the search begins.
        """
        lows = self._ask_offsets(broker, RequestCode.GET_MIN_OFFSET, queues)
        highs = self._ask_offsets(broker, RequestCode.GET_MAX_OFFSET, queues)
        guesses = self._ask_offsets(broker, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queues, timestamp=str(time_ms))
        found = {}
        for queue in queues:
            # messages below `low` are older, those at `high` and above are not
            low, high, guess = lows[queue], highs[queue], guesses[queue]
            while low < high:
                near = [offset for offset in (guess, guess - 1, guess + 1) if low <= offset < high]
                middle = near[0] if near else (low + high) // 2
                if self._is_older(broker, queue, middle, time_ms):
                    low = middle + 1
                else:
                    high = middle
            found[queue] = low
        return found

    def _is_older(self, broker: str, queue: tuple[str, int], offset: int, time_ms: int) -> bool:
        """Return whether the message at an offset was stored before a time, or is gone."""
        pulled = self.pull(broker, *queue, offset, 1)
        if not pulled.records:
            return True
        (flag,) = _SYSTEM_FLAG.unpack_from(pulled.records, _SYSTEM_FLAG_POSITION)
        position = _STORE_TIMESTAMP_POSITIONS[1 if flag & BORN_HOST_V6 else 0]
        (stored_ms,) = _STORE_TIMESTAMP.unpack_from(pulled.records, position)
        return bool(stored_ms < time_ms)

    # -- messages

    def pull(self, broker: str, topic: str, number: int, offset: int, count: int) -> PulledRecords:
        """Pull at most `count` messages from an offset on. The broker keeps no state of it."""
        what = _named(broker, topic, number)
        slot = _Slot(offset, offset + count)

        def call(client: RemotingClient) -> PulledRecords:
            [answer] = client.call_all(RequestCode.PULL_MESSAGE, [self._pull_fields(topic, number, slot)])
            return _pulled(answer, slot, what)

        return self._ask(broker, topic, what, call)

    def pulls(self, broker: str, topic: str, number: int, begin: int, end: int) -> Iterator[PulledRecords]:
        """Yield the messages between two offsets in their order; several pulls are under way.

        The last answer is the one that reaches `end`, is outside, or has nothing, since the queue ends there.
        """
        what = _named(broker, topic, number)
        retries = self._retries()
        pulls = _Pulls(begin, end, self._strides.get(broker))
        while not pulls.are_done:
            address = self.addresses[broker]
            try:
                client = self._client(address)
                for slot in pulls.to_send():
                    fields = self._pull_fields(topic, number, slot)
                    pulls.sent(client.begin(RequestCode.PULL_MESSAGE, fields), slot)
                pulls.take(client.answer(), what)
            except (RemotingFailed, OSError, FrameMalformed) as error:
                if isinstance(error, RemotingFailed) and error.code not in _RETRIED:
                    raise
                self._drop(address)
                pulls.send_again()
                retries.wait(f"{address}: {_told(what, error)}", error)
                self._look_again(broker, topic)
            else:
                retries.renew()
                if pulls.stride is not None:
                    self._strides[broker] = pulls.stride
                yield from pulls.ready()

    def _pull_fields(self, topic: str, number: int, slot: _Slot) -> dict[str, str]:
        return {
            "consumerGroup": self._group,
            "topic": topic,
            "queueId": str(number),
            "queueOffset": str(slot.at),
            "maxMsgNums": str(slot.end - slot.at),
            "sysFlag": str(_HAS_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }

    # -- calls

    def _ask(self, broker: str, topic: str, what: str, call: Callable[[RemotingClient], _Answer]) -> _Answer:
        """Call a broker until it answers or time is over."""
        retries = self._retries()
        while True:
            address = self.addresses[broker]
            try:
                return call(self._client(address))
            except (RemotingFailed, OSError, FrameMalformed) as error:
                if isinstance(error, RemotingFailed) and error.code not in _RETRIED:
                    raise
                self._drop(address)
                retries.wait(f"{address}: {_told(what, error)}", error)
                self._look_again(broker, topic)

    def _look_again(self, broker: str, topic: str) -> None:
        """Look for the broker of a topic at the name servers: another process may have its name now."""
        for address in self._name_servers:
            try:
                [answer] = self._client(address).call_all(
                    RequestCode.GET_ROUTE_BY_TOPIC, [{"topic": topic, "acceptStandardJsonOnly": "true"}]
                )
            except (OSError, FrameMalformed):
                self._drop(address)
                continue
            if answer.code == 0:
                queues = _queues_of(topic, answer)
                self.addresses |= {queue.broker: queue.address for queue in queues if queue.broker == broker}
                return

    def _client(self, address: str) -> RemotingClient:
        if address not in self._clients:
            endpoint = replace(self._endpoint, address=address)
            self._clients[address] = RemotingClient(
                endpoint.host, endpoint.port, user=endpoint.user, secret=endpoint.secret or "", tls=self._tls
            )
        return self._clients[address]

    def _drop(self, address: str) -> None:
        client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def _retries(self) -> Retries:
        return Retries(self._timeout_ms, self._clock, self._closed)


@dataclass(slots=True, eq=False)
class _Slot:
    """A range of offsets that is pulled by one request after the other, until it is complete."""

    at: int
    end: int
    found: list[PulledRecords] = field(default_factory=list)
    is_last: bool = False


class _Pulls:
    """The pulls of a range of offsets that are under way, and their answers in order."""

    def __init__(self, begin: int, end: int, stride: int | None) -> None:
        """`stride` is the number of messages that the broker gives for a pull, if it is known."""
        self._at, self._end = begin, end
        self.stride = stride
        self._slots: deque[_Slot] = deque()
        self._sent: dict[int, _Slot] = {}
        self._unsent: deque[_Slot] = deque()

    @property
    def are_done(self) -> bool:
        return self._at >= self._end and not self._slots

    def to_send(self) -> Iterator[_Slot]:
        """Yield what is to be pulled now."""
        while self._unsent:
            yield self._unsent.popleft()
        under_way = 1 if self.stride is None else PULLS_UNDER_WAY
        while self._at < self._end and len(self._slots) < under_way:
            slot = _Slot(self._at, min(self._at + (self.stride or PULLED_AT_ONCE), self._end))
            self._at = slot.end
            self._slots.append(slot)
            yield slot

    def sent(self, number: int, slot: _Slot) -> None:
        """Note the number of a request."""
        self._sent[number] = slot

    def send_again(self) -> None:
        """Send everything without an answer again, over another connection."""
        self._sent.clear()
        self._unsent = deque(slot for slot in self._slots if slot.at < slot.end and not slot.is_last)

    def take(self, answer: Command, what: str) -> None:
        """Take an answer. Raises RemotingFailed for an error."""
        slot = self._sent.pop(answer.opaque, None)
        if slot is None:  # of a range that was given up
            return
        try:
            pulled = _pulled(answer, slot, what)
        except RemotingFailed:
            self._unsent.append(slot)
            raise
        slot.found.append(pulled)
        count = pulled.following - pulled.begin
        if pulled.is_outside or count <= 0:
            slot.is_last = True
            return
        slot.at = pulled.following
        if slot.at >= slot.end:
            if self.stride is not None and len(slot.found) == 1 and count >= self.stride:
                self.stride = min(2 * self.stride, PULLED_AT_ONCE)
            self.stride = self.stride or max(count, 1)
            return
        self.stride = count
        if slot is self._slots[-1]:
            self._at = slot.end = slot.at  # the rest is pulled by as many requests as it takes
        else:
            self._unsent.append(slot)

    def ready(self) -> Iterator[PulledRecords]:
        """Yield the answers that follow those before."""
        while self._slots:
            slot = self._slots[0]
            yield from slot.found
            slot.found.clear()
            if slot.is_last:
                self._slots.clear()
                self._at = self._end
            elif slot.at >= slot.end:
                self._slots.popleft()
            else:
                return


def _pulled(answer: Command, slot: _Slot, what: str) -> PulledRecords:
    if answer.code not in _PULLED:
        checked(answer, what)
    following = int(answer.fields["nextBeginOffset"])
    records = answer.body if answer.code == 0 else b""
    if following > slot.end:
        records = _below(records, slot.end)
    return PulledRecords(records, slot.at, following, answer.code == ResponseCode.PULL_OFFSET_MOVED)


def _below(records: bytes, offset: int) -> bytes:
    """Return the records below an offset: a queue with gaps gives records beyond those that were asked for."""
    at = 0
    while at < len(records):
        (queue_offset,) = _QUEUE_OFFSET.unpack_from(records, at + _QUEUE_OFFSET_POSITION)
        if queue_offset >= offset:
            break
        (size,) = _SIZE.unpack_from(records, at)
        at += size
    return records[:at]


def _queues_of(topic: str, answer: Command) -> list[RoutedQueue]:
    """Return the readable queues of a route."""
    route = _json(answer.body)
    if route.get("topicQueueMappingByBroker"):
        raise RemotingFailed(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "static topics cannot be read by offset", f"topic {topic}"
        )
    # the master, or without one the slave with the lowest id
    addresses = {
        each["brokerName"]: each["brokerAddrs"].get(_MASTER) or min(each["brokerAddrs"].items())[1]
        for each in route["brokerDatas"]
        if each["brokerAddrs"]
    }
    return sorted(
        RoutedQueue(each["brokerName"], number, addresses[each["brokerName"]])
        for each in route["queueDatas"]
        if each["brokerName"] in addresses and each["perm"] & _READ
        for number in range(each["readQueueNums"])
    )


def _json(body: bytes) -> dict[str, Any]:
    """Parse JSON. Name servers before 4.9.4 write the ids of brokers without quotes."""
    try:
        parsed: dict[str, Any] = json.loads(body)
    except ValueError:
        parsed = json.loads(_NUMBER_AS_KEY.sub(r'\1"\2":', body.decode()))
    return parsed


def _told(what: str, error: Exception) -> str:
    """Return an error with what it is about. A refusal says that itself."""
    return str(error) if isinstance(error, RemotingFailed) else f"{what}: {error}"


def _named(broker: str, topic: str, number: int) -> str:
    return f"topic {topic}, queue {broker}/{number}"


def _tls(endpoint: Endpoint) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=endpoint.ca)
    if endpoint.certificate is not None and endpoint.key is not None:
        made.load_cert_chain(endpoint.certificate, endpoint.key)
    return made
