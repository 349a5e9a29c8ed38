"""Counts of queues as the admin port's message."""

from __future__ import annotations

from server._generated.quarry.admin.v1 import admin_pb2 as pb
from store.queue_summary import QueueSummary


def summary_message(summary: QueueSummary) -> pb.QueuesSummary:
    return pb.QueuesSummary(
        kinds=[
            pb.QueueKindSummary(kind=kind.value, queues=each.queues, empty=each.empty, entries=each.entries)
            for kind, each in summary.kinds.items()
        ],
        largest=[
            pb.LargeQueue(topic=each.queue.topic, queue=each.queue.number, entries=each.entries)
            for each in summary.largest
        ],
        disk={
            place: pb.DiskUse(files=use.files, apparent_bytes=use.apparent_bytes, allocated_bytes=use.allocated_bytes)
            for place, use in summary.disk.items()
        },
        rocksdb=summary.figures,
    )
