"""An administration over real tables and a real delivery, on the in-memory engine."""

from __future__ import annotations

from pathlib import Path

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.admin.administration import Administration, BrokerFacts
from quarry_mq.server.admin_port.metadata.service import AdminService
from quarry_mq.server.maintenance.retention import ExpiryReport
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.tasks import Pacing, TimeSlice
from quarry_mq.store.backup import BackupPoint
from quarry_mq.store.consumequeue.queue_summary import CountedQueue, QueueSummary
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import GroupTable, Topic, TopicTable
from quarry_mq.store.retention import Unread
from quarry_mq.store.settings import Durability
from quarry_mq.store.state.identity import FAMILIES
from tests.delivery.broker import DeliveryBench

FACTS = BrokerFacts(
    name="quarry-0",
    cluster="DefaultCluster",
    version="0.1.0",
    advertised_address="broker.example:8081",
    store_directory="/data/store",
    durability=Durability.SYNC,
    started_at_ms=1_700_000_000_000,
)


class BenchStore:
    """The message lists of a delivery bench, as administration sees a store."""

    def __init__(self, bench: DeliveryBench) -> None:
        self._source = bench.source

    @property
    def appended_up_to(self) -> PhysicalOffset:
        return self._source.appended_up_to

    @property
    def flushed_up_to(self) -> PhysicalOffset:
        return self._source.appended_up_to

    @property
    def dispatched_up_to(self) -> PhysicalOffset:
        return self._source.appended_up_to

    def bounds(self, queue: QueueId) -> QueueBounds:
        return self._source.bounds(queue)

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset:
        """Message n was stored at n seconds; tests/store/test_time_search.py has the real thing."""
        assert boundary is TimeBoundary.LOWER
        bounds = self.bounds(queue)
        return QueueOffset(min(max(-(-time_ms // 1000), bounds.minimum), bounds.maximum))

    def iterate_queues(self, topic: str | None = None) -> list[QueueId]:
        return [queue for queue, kept in self._source.queues.items() if kept and topic in (None, queue.topic)]

    def delete_topic(self, topic: str) -> int:
        queues = self.iterate_queues(topic)
        for queue in queues:
            del self._source.queues[queue]
        return len(queues)


class BenchBackups:
    """Points without a store behind them."""

    def __init__(self) -> None:
        self.pinned: list[str] = []

    async def begin(self) -> BackupPoint:
        point = BackupPoint(
            name=f"point-{len(self.pinned)}",
            root=Path("/data/store"),
            log_begin=PhysicalOffset(0),
            log_end=PhysicalOffset(4_400),
            segment_size=1 << 30,
        )
        self.pinned.append(point.name)
        return point

    def renew(self, name: str) -> None:
        if name not in self.pinned:
            raise Invalid(f"no point {name}")

    def end(self, name: str) -> None:
        self.renew(name)
        self.pinned.remove(name)


class BenchOrder:
    """The real thing is in tests/server/test_reading_order.py and tests/conformance/test_queue_counts.py."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def require_read(self, topic: Topic, _slice: TimeSlice) -> None:
        self.asked.append(topic.name)


class AdminBench:
    """What a test of administration moves: `delivery` sends and receives beside it."""

    def __init__(self) -> None:
        self.delivery = DeliveryBench()
        self.engine = MemoryEngine(FAMILIES, write_ahead_log=True)
        self.topics = TopicTable(self.engine)
        self.groups = GroupTable(self.engine)
        self.store = BenchStore(self.delivery)
        self.deletions = 0
        self.administration = Administration(
            FACTS,
            topics=self.topics,
            groups=self.groups,
            store=self.store,
            delivery=self.delivery.delivery,
            default_queues=8,
            queues_deleted=self._count_deletion,
        )
        self.expiring = ExpiryReport([], Unread({}, complete=True))
        self.error_reporter = ErrorReporter(self.delivery.clock, damage_met=lambda: None, passed_over=lambda: None)
        self.backups = BenchBackups()
        self.order = BenchOrder()

    @property
    def service(self) -> AdminService:
        return AdminService(
            self.administration,
            self.error_reporter,
            self.backups,
            self.expire,
            self.summarize,
            order=self.order,
            pacing=Pacing(SystemClock()),
        )

    async def summarize(self, largest_max: int) -> QueueSummary:
        """The real thing is in tests/store/test_queue_summary.py."""
        queues = [CountedQueue(queue, len(kept)) for queue, kept in self.delivery.source.queues.items()]
        return QueueSummary(largest=queues[:largest_max])

    async def expire(self, *, dry_run: bool, rewrite_queues: bool) -> ExpiryReport:
        """What a test has put there; the real thing is in tests/server/test_retention.py."""
        if dry_run:
            return self.expiring
        expired, self.expiring = self.expiring, ExpiryReport([], Unread({}, complete=True))
        return expired

    def _count_deletion(self) -> None:
        self.deletions += 1
