"""A broker without its network: the real store, delivery and admin calls, on a machine that stops and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from prometheus_client.core import Metric

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.server.admin.administration import Administration, BrokerFacts, QueueReset
from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.admin_port.official.edge import Names
from quarry_mq.server.admin_port.official.lag import LagCalls
from quarry_mq.server.append.copies import Copies
from quarry_mq.server.append.group_commit import Stored
from quarry_mq.server.delivery import Delivered, Delivery, GroupState, InFlightTable, ReceiveRequest, StateWriter
from quarry_mq.server.delivery.dead_letters import DeadLetterStore
from quarry_mq.server.delivery.model import ResetTarget
from quarry_mq.server.delivery.open_subscriptions import IDLE_SUBSCRIPTION_S
from quarry_mq.server.errors import InvalidReceiptHandle
from quarry_mq.server.lag.consumer_lag import ConsumerLag, PairLag
from quarry_mq.server.lag.group_progress import GroupProgress
from quarry_mq.server.lite.subscriptions import Asking, LiteSubscriptions, Start, offset_of
from quarry_mq.server.observability.metrics.rocketmq import Families, lag_metrics
from quarry_mq.server.pending import DelayedDelivery
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.store.message import Appended, Message, PhysicalOffset
from quarry_mq.store.metadata import Topic
from quarry_mq.store.metadata.lite import LiteGroup, LiteSubscriptionTable
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.settings import Durability
from tests.delivery.broker import ManualTimers, Receive
from tests.faults.machine import HOST, SEGMENT_SIZE, Machine
from tests.handles import HANDLE_KEY
from tests.lag.scan import Queues, scan

PAIRS_MAX: Final = 1_000
T = TypeVar("T")


class PendingStats:
    """Metrics of delayed messages and of copies that nobody looks at."""

    def delayed_delivered(self, late_s: float) -> None: ...

    def delayed_lost(self) -> None: ...

    def left_out(self, properties: int) -> None: ...

    def dead_letter_refused(self) -> None: ...


class Bench:
    """The moves of a test. Each ends its pass of the loop."""

    def __init__(self, settings: BrokerSettings, directory: Path | None = None) -> None:
        """With a directory its databases are RocksDB's, else in memory."""
        self.machine = Machine(1, Durability.ASYNC, directory)
        self.clock = self.machine.clock
        self.settings = settings
        self.gone: dict[str, int] = {}
        """Where in the log topics were deleted."""
        self.failures: list[Exception] = []
        self._scanned: tuple[tuple[int, int, Mapping[str, int]], Queues] | None = None
        self._loop = asyncio.new_event_loop()
        self._pass: list[Callable[[], None]] = []
        self.begin()

    # -- lives

    def begin(self) -> None:
        self.store: OpenStore = self.machine.start().store
        self._pass.clear()
        self.timers = ManualTimers(self.clock)
        store, clock = self.store, self.clock
        self.writer = StateWriter(store.state_engine, self._pass.append, self.failures.append)
        self._copies = Copies(
            SimpleNamespace(send=self._send_back, send_durably=self._send_back), lambda: HOST, PendingStats()
        )
        self.delivery = self._make_delivery()
        self.delays = DelayedDelivery(
            store.messages,
            self._copies,
            topic_exists=lambda name: store.topics.get(name) is not None,
            clock=clock,
            timers=self.timers,
            error_reporter=self,
            metrics=PendingStats(),
            handle_key=HANDLE_KEY,
        )
        self.lite = LiteSubscriptions(
            LiteSubscriptionTable(store.state_engine),
            writer=self.writer,
            delivery=self.delivery.lite,
            queues=self.delivery.light_queues,
            start_of=lambda queue, start: offset_of(store.messages, queue, start),
            taken_away=lambda *_: None,
            clock=clock,
        )
        self.administration = self._make_administration()
        self.calls = LagCalls(
            Names(store.topics, store.groups),
            GroupProgress(store, self.delivery, self.writer, clock),
            Pacing(clock),
            broker_name="broker",
            clock=clock,
        )
        self.lag = ConsumerLag(
            self.delivery,
            store.messages,
            pairs_max=PAIRS_MAX,
            clock=clock,
            queue_count=lambda name: None if (topic := store.topics.get(name)) is None else topic.queue_count,
            reads=store.offsets.reads,
        )
        self.delays.start()
        self.end_pass()

    def _make_delivery(self) -> Delivery:
        store, lease_ms = self.store, self.settings.delivery.lease_ms
        return Delivery(
            self.settings,
            store.messages,
            GroupState.of(
                store.state_engine,
                store.offsets,
                HANDLE_KEY,
                self.writer,
                leases_until_ms=self.clock.wall_ms() + lease_ms if store.is_after_crash else None,
            ),
            clock=self.clock,
            timers=self.timers,
            is_client_alive=lambda _: True,
            error_reporter=self,
            dead_letters=DeadLetterStore(
                store.topics,
                copies=self._copies,
                dead_lettered=lambda *_: None,
            ),
        )

    def _make_administration(self) -> Administration:
        store = self.store
        facts = BrokerFacts(
            name="broker",
            cluster="cluster",
            version="1",
            advertised_address="",
            store_directory="",
            durability=Durability.ASYNC,
            started_at_ms=0,
        )
        return Administration(
            facts,
            topics=store.topics,
            groups=store.groups,
            store=store.messages,
            delivery=self.delivery,
            default_queues=2,
            queues_deleted=self._flush_queues,
        )

    def stop(self) -> None:
        self.delivery.drain()
        self.end_pass()
        self._let_go()
        self.writer.write_now()
        self.store.close()

    def crash(self) -> None:
        """The process dies; nothing that was written is lost, but for queues in memory."""
        self._let_go()
        self.machine.crash(power_loss=False)

    def _let_go(self) -> None:
        self.delivery.stop()
        self.delays.stop()
        self.lag.stop()

    def close(self) -> None:
        self._loop.close()
        self.machine.close()

    def report(self, error: Exception, **where: object) -> None:
        raise AssertionError(where) from error

    # -- time

    def end_pass(self) -> None:
        while self._pass:
            callbacks, self._pass[:] = list(self._pass), []
            for callback in callbacks:
                callback()

    def advance(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.timers.run_due()
        self.end_pass()

    def drop_idle(self) -> None:
        self.advance(int(IDLE_SUBSCRIPTION_S) + 1)
        self.delivery.drop_idle_subscriptions()

    def waited_for(self, work: Coroutine[Any, Any, T]) -> T:
        async def whole() -> T:
            task = asyncio.ensure_future(work)
            while not task.done():
                await asyncio.sleep(0)
                self.end_pass()
            return task.result()

        return self._loop.run_until_complete(whole())

    # -- producers

    def send(self, messages: Sequence[Message]) -> None:
        if messages:
            self._send(messages)
            self.end_pass()

    def _send(self, messages: Sequence[Message]) -> Sequence[Appended]:
        its = self.store.messages
        appended = its.append(messages)
        requests = its.dispatch(its.appended_up_to)
        self.delivery.messages_arrived(requests)
        self.delays.messages_arrived(requests)
        return appended

    def _send_back(self, messages: Sequence[Message], stored: Stored) -> None:
        self._pass.append(lambda: stored(self._send(messages), None))

    # -- consumers

    def receive(self, request: ReceiveRequest) -> Sequence[Delivered]:
        receive = Receive()
        self.delivery.receive(request, 0, receive)
        return self._received(receive)

    def receive_lite(self, request: ReceiveRequest, group: LiteGroup) -> Sequence[Delivered]:
        receive = Receive()
        self.delivery.lite.receive(request, group, 0, receive)
        return self._received(receive)

    def _received(self, receive: Receive) -> Sequence[Delivered]:
        self.end_pass()
        self.delivery.end_waiting()
        self.end_pass()
        assert receive.ended
        assert receive.error is None, receive.error
        return receive.messages

    def acknowledge(self, group: str, topic: str, handle: str) -> bool:
        """Whether the handle stood."""
        try:
            self.delivery.acknowledge(group, topic, handle)
        except InvalidReceiptHandle:
            return False
        finally:
            self.end_pass()
        return True

    def hide(self, group: str, topic: str, handle: str, invisible_ms: int) -> str | None:
        """The handle from now on; None when the one that is given does not stand."""
        try:
            return self.delivery.change_invisible(group, topic, handle, invisible_ms).receipt_handle
        except InvalidReceiptHandle:
            return None
        finally:
            self.end_pass()

    def dead_letter(self, group: str, topic: str, handle: str) -> bool:
        """Whether the handle stood; the message is among the dead letters then."""
        dead_lettered: list[Exception | None] = []
        try:
            self.delivery.dead_letter(group, topic, handle, dead_lettered.append)
        except InvalidReceiptHandle:
            return False
        self.end_pass()
        assert dead_lettered == [None]
        return True

    def want_lite(self, asking: Asking, lite_topics: Iterable[str], start: Start) -> None:
        self.lite.add(asking, lite_topics, start, self._done)
        self.end_pass()

    def want_lite_no_more(self, asking: Asking, lite_topics: Iterable[str]) -> None:
        self.lite.remove(asking, lite_topics, self._done)
        self.end_pass()

    @staticmethod
    def _done(error: Exception | None) -> None:
        assert error is None

    # -- operators

    def change_queues(self, topic: Topic) -> None:
        self.store.topics.update(topic)

    def reset_offset(self, group: str, topic: str, to: ResetTarget) -> Sequence[QueueReset]:
        return self.waited_for(self.administration.reset_offset(group, topic, to, TimeSlice(self.clock)))

    def delete_topic(self, name: str) -> None:
        self.administration.delete_topic(name)
        self.gone[name] = self.store.messages.appended_up_to
        self.end_pass()

    def resend(self, group: str) -> None:
        """Of the group's dead letters, if it has any, those that never were sent again."""
        store = self.store
        if store.topics.get(f"%DLQ%{group}") is None:
            return
        box = DeadLetterBox(
            store.topics,
            source=store.messages,
            offsets=store.offsets,
            inflight=InFlightTable(store.state_engine),
            writer=self.writer,
            send=self._send_back,
            store_host=lambda: HOST,
        )
        self.waited_for(box.resend(group))

    def expire(self, segments: int) -> None:
        """Let the oldest segments go, as many of them as may."""
        expiry, messages = self.store.expiry, self.store.messages
        expiry.remover.configure(patience_s=0, pause_s=0)
        filling = messages.appended_up_to // SEGMENT_SIZE * SEGMENT_SIZE
        wanted = PhysicalOffset(min(expiry.minimum + segments * SEGMENT_SIZE, filling))
        if wanted <= expiry.minimum:
            return
        self.waited_for(self.delays.carry_over(wanted))
        self._flush_queues()
        wanted = min(wanted, expiry.latest_beginning)
        expiry.announce(wanted)
        expiry.retire(wanted)
        expiry.remover.run()

    def _flush_queues(self) -> None:
        messages = self.store.messages
        messages.flush()
        messages.flush_entries()
        messages.flush_queues()

    # -- what there is, and what is told of it

    def queues(self) -> Queues:
        """Scanned anew when the log is another one than it was."""
        state = self.store.messages.appended_up_to, self.store.expiry.minimum, dict(self.gone)
        if self._scanned is None or self._scanned[0] != state:
            pending = self.store.segments._next._pending
            if pending is not None:
                wait([pending])  # a segment is made ahead on a thread, and appears while files are listed
            log = self.machine.kernel.path("/store/commitlog")
            self._scanned = state, scan(self.machine.disk, log, self.gone)
        return self._scanned[1]

    def accumulation(self, request: pb.DescribeGroupAccumulationRequest) -> pb.DescribeGroupAccumulationResponse:
        """Raises server.wire.status.Refused."""
        return _at_once(self.calls.describe_group_accumulation(request))

    def time_span(self, request: pb.QueryTimeSpanRequest) -> pb.QueryTimeSpanResponse:
        """Raises server.wire.status.Refused."""
        return _at_once(self.calls.query_time_span(request))

    def pairs(self) -> Sequence[PairLag]:
        """After a round of its own."""
        for _ in self.lag.steps():
            self.end_pass()
        return self.lag.pairs

    def metrics(self) -> list[Metric]:
        return list(lag_metrics(Families(cluster="cluster", node_id="broker"), self.lag.pairs))


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """What has nothing to wait for, as time stands still."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("it waits for something")
