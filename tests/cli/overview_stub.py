"""A gRPC server that answers what a test puts into it: figures that a real broker would take days to come to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import jobs_pb2, migration_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.jobs_pb2_grpc import (
    JobServiceServicer,
    add_JobServiceServicer_to_server,
)
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import (
    MigrationServiceServicer,
    add_MigrationServiceServicer_to_server,
)
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import (
    OverviewServiceServicer,
    add_OverviewServiceServicer_to_server,
)
from quarry_mq.server.counters import ReceiveStages, SendStages

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NOW_MS = 1_795_425_120_000
"""2026-11-23T09:12:00Z"""


class Stub(OverviewServiceServicer, MigrationServiceServicer, JobServiceServicer):
    """`answers` by method, as they are or made from the request; `refusals` come instead, `slow_s` before."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            "GetOverview": overview(),
            "ListOverviews": members("one"),
            "GetHistory": history(),
            "ListTopicFigures": topics,
            "ListGroupFigures": groups,
            "GetMigration": migration(),
            "ListJobs": jobs(),
        }
        self.refusals: dict[str, tuple[grpc.StatusCode, str]] = {}
        self.slow_s: dict[str, float] = {}
        self.asked: list[tuple[str, Any]] = []
        self.most_at_once: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._lock = threading.Lock()

    def count(self, method: str) -> int:
        return sum(1 for name, _ in self.asked if name == method)

    def _answer(self, method: str, request: Any, context: grpc.ServicerContext) -> Any:
        with self._lock:
            self.asked.append((method, request))
            self._under_way[method] = self._under_way.get(method, 0) + 1
            self.most_at_once[method] = max(self.most_at_once.get(method, 0), self._under_way[method])
        try:
            time.sleep(self.slow_s.get(method, 0))
            if method in self.refusals:
                context.abort(*self.refusals[method])
            answer = self.answers[method]
            return answer(request) if callable(answer) else answer
        finally:
            with self._lock:
                self._under_way[method] -= 1

    def GetOverview(self, request: Any, context: Any) -> Any:
        return self._answer("GetOverview", request, context)

    def ListOverviews(self, request: Any, context: Any) -> Any:
        return self._answer("ListOverviews", request, context)

    def GetHistory(self, request: Any, context: Any) -> Any:
        return self._answer("GetHistory", request, context)

    def ListTopicFigures(self, request: Any, context: Any) -> Any:
        return self._answer("ListTopicFigures", request, context)

    def ListGroupFigures(self, request: Any, context: Any) -> Any:
        return self._answer("ListGroupFigures", request, context)

    def GetMigration(self, request: Any, context: Any) -> Any:
        return self._answer("GetMigration", request, context)

    def ListJobs(self, request: Any, context: Any) -> Any:
        return self._answer("ListJobs", request, context)


@contextmanager
def served(stub: Stub, port: int = 0) -> Iterator[tuple[str, Callable[[], object]]]:
    """The address where it answers, and what ends it at once."""
    server = grpc.server(ThreadPoolExecutor(max_workers=16), options=(("grpc.so_reuseport", 0),))
    add_OverviewServiceServicer_to_server(stub, server)
    add_MigrationServiceServicer_to_server(stub, server)
    add_JobServiceServicer_to_server(stub, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{bound}", lambda: server.stop(0).wait()
    finally:
        server.stop(0).wait()


# -- what it answers


def overview(name: str = "broker-a", **changes: Any) -> pb.Overview:
    found = pb.Overview(
        at_ms=NOW_MS,
        readiness="ready",
        sent_per_second=12_345.6,
        received_per_second=11_987.2,
        sent=1_234_567_890,
        received=1_234_001_234,
        sent_today=398_123_456,
        received_today=398_000_001,
        connections=42,
        producers=12,
        consumers=24,
        topics=1_203,
        groups=44,
        disk_total=200 * 2**30,
        disk_free=110 * 2**30,
        log_size=71 * 2**30,
        oldest_stored_at_ms=NOW_MS - 2 * DAY_MS - 3 * HOUR_MS,
        ready_messages=1_203_456,
        in_flight_messages=1_024,
        lag_ms=3 * HOUR_MS + 12 * 60_000,
        lag_is_whole=True,
        timers=12_345,
        lite_topics=1_000_000,
        migration_phase="double_write",
        migration_lag_bytes=4096,
        open_jobs=2,
        process=pb.Process(cpu_seconds=4321.5, resident_bytes=345 * 2**20, open_files=120, loop_late_seconds=0.004),
    )
    found.broker.name, found.broker.cluster, found.broker.version = name, "DefaultCluster", "0.1.0"
    found.broker.started_at_ms = NOW_MS - 3 * DAY_MS - 4 * HOUR_MS
    for call, stages in (("send", SendStages()), ("receive", ReceiveStages(SystemClock()))):
        for number, (stage, histogram) in enumerate(stages):
            bounds = [bound for bound, _ in histogram.buckets()][:-1]
            counts = [0] * (len(bounds) + 1)
            counts[number % 6 + 1], counts[number % 6 + 2] = 980, 20
            if stage == "flush":
                counts[8] = 40
            total_s = sum(count * float(bound) / 2 for count, bound in zip(counts, bounds, strict=False))
            found.stages.add(
                call=call, name=stage, bounds_seconds=map(float, bounds), counts=counts, total_seconds=total_s
            )
    for key, value in changes.items():
        if isinstance(value, list):
            getattr(found, key)[:] = value
        elif value is None:
            found.ClearField(key)
        else:
            setattr(found, key, value)
    return found


def later(before: pb.Overview, times: int) -> pb.Overview:
    """What it would tell when so many thousand sends and receives more came through."""
    found = pb.Overview()
    found.CopyFrom(before)
    found.at_ms += 2_000
    found.process.cpu_seconds += 0.9
    for stage in found.stages:
        stage.total_seconds *= 1 + times
        stage.counts[:] = [count * (1 + times) for count in stage.counts]
    return found


def history() -> pb.History:
    at_ms = [NOW_MS - HOUR_MS + step * 10_000 for step in range(1, 361)]
    found = pb.History(interval_ms=10_000, at_ms=at_ms)
    for name, top in (("sent_per_second", 20_000.0), ("received_per_second", 19_000.0)):
        values = [float("nan") if step < 60 else top * (1 - abs(step - 250) / 300) for step in range(360)]
        found.series.add(name=name, unit="messages/s", values=values)
    return found


def topics(request: pb.ListTopicFiguresRequest) -> pb.ListTopicFiguresResponse:
    found = pb.ListTopicFiguresResponse(matching=1_203)
    for number in range(40):
        name = f"orders-{number:02}" if number % 2 else f"a-topic-with-a-very-long-name-{number:02}"
        if request.contains.lower() not in name:
            continue
        each = found.topics.add(
            messages=1_000_000 - number * 12_345,
            estimated_bytes=2**33,
            last_stored_at_ms=NOW_MS - 1_500 * (1 + number),
            group_count=2,
        )
        each.topic.name, each.topic.type = name, 1 + number % 5  # type: ignore[assignment]
        each.topic.read_queues = each.topic.write_queues = 16
        if number < 10:
            each.sent_per_second, each.received_per_second = 1000.0 / (1 + number), 900.0 / (1 + number)
        each.groups.add(group="billing", topic=name, ready=120, in_flight=3, lag_ms=1_234, consumers=2)
        each.groups.add(group="audit", topic=name, consumers=0)
    return found


def groups(request: pb.ListGroupFiguresRequest) -> pb.ListGroupFiguresResponse:
    found = pb.ListGroupFiguresResponse(matching=4)
    for number, name in enumerate(("billing", "audit", "shipping", "reports-that-run-once-a-month")):
        if request.contains.lower() not in name:
            continue
        each = found.groups.add(consumers=number, topic_count=1)
        each.group.name, each.group.enabled, each.group.max_attempts = name, True, 16
        if number < 3:
            each.ready, each.in_flight, each.lag_ms = (
                1_203_456 // (1 + number * 50),
                12,
                11_520_000 // (1 + number * 99),
            )
            each.dead_letters = number
        each.topics.add(group=name, topic="orders-01", ready=120, in_flight=3, lag_ms=1_234, consumers=number)
    return found


def migration() -> migration_pb2.Migration:
    found = migration_pb2.Migration(
        phase="double_write",
        read="file",
        assign="file",
        advance_refused="the second store is 4,096 bytes behind: wait until it has caught up",
        rollback_to="file",
        lag_bytes=4096,
    )
    found.steps.add(at_ms=NOW_MS - HOUR_MS, to="double_write", asked_by="operator@desk", **{"from": "file"})
    return found


def jobs() -> jobs_pb2.ListJobsResponse:
    return jobs_pb2.ListJobsResponse(
        jobs=[
            jobs_pb2.Job(id=NOW_MS - 1_000, kind="verify", state="waiting", asked_by="operator@desk"),
            jobs_pb2.Job(
                id=NOW_MS - 60_000, kind="resend-messages", state="running", done=4_500, total=10_000, asked_by="ops"
            ),
            jobs_pb2.Job(
                id=NOW_MS - DAY_MS, kind="reset-offset", state="done", done=16, total=16, ended_at_ms=NOW_MS - DAY_MS
            ),
        ]
    )


def members(*names: str, told_by: str = "one", silent: str = "", addresses: dict[str, str] | None = None) -> Any:
    found = pb.ListOverviewsResponse()
    for name in names:
        each = found.members.add(
            name=name,
            is_self=name == told_by,
            state="active" if len(names) > 1 else "alone",
            is_reachable=name != silent,
            admin_address=(addresses or {}).get(name, ""),
            version="0.1.0",
        )
        if name == silent:
            each.problem = "no answer within 2 s"
        else:
            each.overview.CopyFrom(overview(name))
    return found
