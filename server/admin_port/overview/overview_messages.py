"""Translate overviews and the last hour to messages of the admin protocol."""

from __future__ import annotations

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.server.admin.figures.history import INTERVAL_MS, Excerpt
from quarry_mq.server.admin.figures.overview import Overview, ProcessNow, StageTimes


def overview_message(broker: admin_pb2.Broker, now: Overview) -> pb.Overview:
    """Translate an overview. Unknown values are not set."""
    today, yesterday, disk, lag = now.today, now.yesterday, now.disk, now.lag
    return pb.Overview(
        broker=broker,
        at_ms=now.at_ms,
        readiness=now.readiness,
        concerns=now.concerns,
        sent_per_second=now.rates.sent,
        received_per_second=now.rates.received,
        sent=now.moved.sent,
        received=now.moved.received,
        sent_today=None if today is None else today.sent,
        received_today=None if today is None else today.received,
        sent_yesterday=None if yesterday is None else yesterday.sent,
        received_yesterday=None if yesterday is None else yesterday.received,
        connections=now.connections,
        producers=now.producers,
        consumers=now.consumers,
        topics=now.topics,
        groups=now.groups,
        disk_total=None if disk is None else disk.total_bytes,
        disk_free=None if disk is None else disk.available_bytes,
        log_size=now.log_size,
        oldest_stored_at_ms=now.oldest_stored_ms,
        ready_messages=None if lag is None else lag.ready,
        in_flight_messages=None if lag is None else lag.in_flight,
        lag_ms=None if lag is None else lag.lag_ms,
        lag_is_whole=now.lag_is_whole,
        timers=now.timers,
        transactions=now.transactions,
        lite_topics=now.lite_topics,
        migration_phase=now.migration_phase,
        migration_lag_bytes=now.migration_lag_bytes,
        open_jobs=now.open_jobs,
        stages=map(_stage_message, now.stages),
        process=_process_message(now.process),
    )


def history_message(excerpt: Excerpt) -> pb.History:
    return pb.History(
        interval_ms=INTERVAL_MS,
        at_ms=excerpt.at_ms,
        series=[pb.Series(name=each.name, unit=each.unit, values=values) for each, values in excerpt.series],
    )


def _stage_message(stage: StageTimes) -> pb.Stage:
    return pb.Stage(
        call=stage.call,
        name=stage.name,
        bounds_seconds=stage.tally.bounds,
        counts=stage.tally.counts(),
        total_seconds=stage.tally.total,
    )


def _process_message(process: ProcessNow) -> pb.Process:
    return pb.Process(
        cpu_seconds=process.cpu_seconds,
        resident_bytes=process.resident_bytes,
        open_files=process.open_files,
        loop_late_seconds=process.loop_late_seconds,
    )
