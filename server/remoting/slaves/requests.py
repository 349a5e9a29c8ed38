"""Answers to slaves of RocketMQ: where their master is, and what they copy beside the log (ADR 69).

A slave registers at its name server every 30 s. The answer tells it where its master is, so a slave whose
`namesrvAddr` is this broker needs no other setting. It is not noted, and stands in no route: clients never see it.

The progress of delayed messages that a slave gets is that of a moment up to which every attached slave has the log. So
whatever the slave lacks when it becomes a master, it delivers itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import orjson

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import SCHEDULE_TOPIC, is_light_queue
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.addresses import Address
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.metadata import pop_topics
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.slaves.ha_server import HaServer
from quarry_mq.server.remoting.wire import Json, RemotingRefused, integer_of
from quarry_mq.server.security.credentials import Access
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import OFF
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.pending import HALVES, LEVELS, TIMERS, DueMessage, PendingBefore, slot_before
from quarry_mq.store.rocketmq import DataVersion
from quarry_mq.store.rocketmq.pending_progress import (
    DELAY_OFFSETS,
    HALVES_RESOLVED,
    TIMER_CHECK,
    TIMER_CHECK_SENT,
    pending_files,
)
from quarry_mq.store.rocketmq.rows import offset_rows
from quarry_mq.store.security.model import Action, ResourceKind

POSITIONS_MAX: Final = 200_000
"""Positions in one answer: this many fit into a frame."""
SAMPLES_MAX: Final = 256
"""Notes of what was delivered that wait until the slaves have the log up to there; without room the oldest go."""


class _Delivered(NamedTuple):
    """The note that where the log ended at `end`, all delayed messages due before `before_ms` had been delivered."""

    end: PhysicalOffset
    before_ms: int
    timers: QueueOffset
    """The end of the queue of timers."""


NOTHING: Final = _Delivered(PhysicalOffset(0), 0, QueueOffset(0))


class RemotingSlaves:
    """Serves requests of slaves."""

    def __init__(
        self,
        edge: RemotingEdge,
        store: OpenStore,
        delivery: Delivery,
        *,
        ha: HaServer,
        first_waiting: Callable[[], DueMessage | None],
        address: Callable[[RemotingCall], str],
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        """`first_waiting` returns the delayed message that is due first, `address` that of this broker for a caller."""
        self._edge = edge
        self._store = store
        self._delivery = delivery
        self._ha = ha
        self._first_waiting = first_waiting
        self._address = address
        self._settings = settings
        self._clock = clock
        self._delivered = NOTHING
        self._samples: deque[_Delivered] = deque(maxlen=SAMPLES_MAX)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code. Without a port for slaves, each slave gets an error that says so."""
        handler = self._edge.operators_handler
        if self._settings.network.rocketmq_ha == OFF:
            return {RequestCode.REGISTER_BROKER: handler(self._refuse)}
        return {
            RequestCode.REGISTER_BROKER: handler(self._register),
            RequestCode.UNREGISTER_BROKER: handler(self._unregister),
            RequestCode.EXCHANGE_BROKER_HA_INFO: handler(self._ha_info),
            RequestCode.GET_BROKER_HA_STATUS: handler(self._ha_status),
            RequestCode.GET_ALL_CONSUMER_OFFSET: handler(self._positions),
            RequestCode.GET_ALL_DELAY_OFFSET: handler(self._delay_offsets),
            RequestCode.GET_TIMER_CHECK_POINT: handler(self._timer_check),
            RequestCode.GET_TIMER_METRICS: handler(self._timer_metrics),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: handler(self._request_modes),
        }

    # -- where the master is

    def _refuse(self, _call: RemotingCall) -> None:
        raise Forbidden("this broker serves no slaves: set network.rocketmq_ha")

    def _register(self, call: RemotingCall) -> None:
        self._require(call)
        if integer_of(call.fields, "brokerId") == 0:
            raise RemotingRefused(
                ResponseCode.INVALID_PARAMETER,
                "this broker is the only master here: set brokerRole=SLAVE and a brokerId above 0",
            )
        fields = {"haServerAddr": self._ha_address(call), "masterAddr": self._address(call)}
        call.answer(fields=fields, body=b'{"table":{}}')

    def _unregister(self, call: RemotingCall) -> None:
        self._require(call)
        call.answer()

    def _ha_info(self, call: RemotingCall) -> None:
        self._require(call)
        fields = {
            "masterAddress": self._address(call),
            "masterFlushOffset": str(self._store.messages.flushed_up_to),
            "masterHaAddress": self._ha_address(call),
        }
        call.answer(fields=fields)

    def _ha_address(self, call: RemotingCall) -> str:
        """Return where the caller reaches the port for slaves: at the host of this broker, unless it listens on one."""
        listening = Address.parse(self._settings.network.rocketmq_ha)
        host = Address.parse(self._address(call)).host if listening.is_unspecified else listening.host
        return str(Address(host, self._ha.port))

    def _ha_status(self, call: RemotingCall) -> None:
        """Answer with the slaves that are attached: `mqadmin haStatus`."""
        self._require(call)
        end = self._store.messages.flushed_up_to
        slaves = [
            {
                "addr": each.peer,
                "diff": end - each.reported,
                "inSync": each.reported == end,
                "slaveAckOffset": each.reported,
                "transferFromWhere": each.sent,
                "transferredByteInSecond": 0,
            }
            for each in self._ha.attached
        ]
        status = {
            "haClientRuntimeInfo": {},
            "haConnectionInfo": slaves,
            "inSyncSlaveNums": sum(each["inSync"] is True for each in slaves),
            "master": True,
            "masterCommitLogMaxOffset": end,
        }
        call.answer(body=orjson.dumps(status))

    # -- what a slave copies

    def _positions(self, call: RemotingCall) -> None:
        """Answer with the positions of all groups: RocketMQ has one for each queue, and no messages in flight."""
        self._require(call)
        self._delivery.writer.write_now()

        async def answer(time_slice: TimeSlice) -> None:
            found: list[tuple[str, QueueId, QueueOffset]] = []
            for group, queue, offset in self._store.offsets.all_rows():
                await time_slice.pause()
                if is_light_queue(queue.topic) or (group, queue) == HALVES_RESOLVED:
                    continue  # a slave does not copy positions in light queues
                if len(found) == POSITIONS_MAX:
                    raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"there are more than {POSITIONS_MAX} positions")
                first = self._delivery.first_in_flight(group, queue, QueueOffset(0))
                found.append((group, queue, offset if first is None else min(first, offset)))
            found.append((*HALVES_RESOLVED, self._halves_resolved()))
            table = {
                name: {str(number): each for number, each in row.items()} for name, row in offset_rows(found).items()
            }
            call.answer(body=orjson.dumps({"dataVersion": self._version.row, "offsetTable": table}))

        self._edge.paced(call, answer)

    def _halves_resolved(self) -> QueueOffset:
        halves = self._store.messages.pending.halves(QueueOffset(0), 1)
        return halves[0].queue_offset if halves else self._store.messages.bounds(HALVES).maximum

    def _delay_offsets(self, call: RemotingCall) -> None:
        self._require(call)
        call.answer(body=self._pending_files()[DELAY_OFFSETS])

    def _timer_check(self, call: RemotingCall) -> None:
        self._require(call)
        call.answer(body=self._pending_files()[TIMER_CHECK][:TIMER_CHECK_SENT])

    def _pending_files(self) -> dict[str, bytes]:
        """Return RocketMQ's files about delayed messages, as far as the slaves have what was delivered."""
        known = self._known()
        levels = {number: self._first_due(QueueId(SCHEDULE_TOPIC, number), known.before_ms) for number in range(LEVELS)}
        progress = PendingBefore(
            scheduled={number: offset for number, offset in levels.items() if offset},
            timers_read=known.timers,
            timers_read_ms=max(0, slot_before(known.before_ms)),
        )
        return pending_files(progress, self._version, timers_end=known.timers)

    def _known(self) -> _Delivered:
        """Note what was delivered until now; return the last note up to which all slaves have the log."""
        messages, now_ms = self._store.messages, self._clock.wall_ms()
        first = self._first_waiting()
        before_ms = now_ms if first is None else min(now_ms, first.due_ms)
        self._samples.append(_Delivered(messages.dispatched_up_to, before_ms, messages.bounds(TIMERS).maximum))
        reported = min((each.reported for each in self._ha.attached), default=PhysicalOffset(0))
        while self._samples and self._samples[0].end <= reported:
            self._delivered = self._samples.popleft()
        return self._delivered

    def _first_due(self, queue: QueueId, before_ms: int) -> QueueOffset:
        """Return the offset of the first message of a delay level that is due at a time or later.

        The messages of a level wait equally long, so they are in the order of their times.
        """
        low, high = self._store.messages.bounds(queue)
        while low < high:
            middle = QueueOffset((low + high) // 2)
            entries = self._store.messages.entries(queue, middle, 1)
            if entries and entries[0].tags_code < before_ms:
                low = QueueOffset(entries[0].queue_offset + 1)
            else:
                high = middle
        return low

    def _timer_metrics(self, call: RemotingCall) -> None:
        """Answer that no timers are counted by topic: RocketMQ counts them when it takes them over."""
        self._require(call)
        call.answer(body=orjson.dumps({"dataVersion": DataVersion(0, 0, 0).row, "timingCount": {}}))

    def _request_modes(self, call: RemotingCall) -> None:
        self._require(call)

        async def answer(time_slice: TimeSlice) -> None:
            modes: dict[str, dict[str, Json]] = {}
            for group in self._store.groups.list():
                for topic in pop_topics(group):
                    row = {"consumerGroup": group.name, "mode": "POP", "popShareQueueNum": 0, "topic": topic}
                    modes.setdefault(topic, {})[group.name] = row
                await time_slice.pause()
            call.answer(body=orjson.dumps({"messageRequestModeMap": modes}))

        self._edge.paced(call, answer)

    @property
    def _version(self) -> DataVersion:
        """Return the version of what changes all the time: it is always new."""
        now_ms = self._clock.wall_ms()
        return DataVersion(0, now_ms, now_ms)

    def _require(self, call: RemotingCall) -> None:
        """Check that the caller may read what belongs to the whole broker."""
        self._edge.require(call, (Access(ResourceKind.CLUSTER, self._settings.broker.cluster, Action.GET),))
