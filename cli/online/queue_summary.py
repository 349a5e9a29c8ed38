"""Counts of a live broker's queues."""

from __future__ import annotations

from cli.online.administration import admin_port
from server._generated.quarry.admin.v1 import admin_pb2 as pb
from store.offsets import QueueId
from store.queue_summary import CountedQueue, DiskUse, KindSummary, QueueKind, QueueSummary


def summary_of_broker(admin: str, largest_max: int) -> QueueSummary:
    """Ask the broker at this admin address. A refusal or a lost connection ends the command with one line."""
    with admin_port(admin) as broker:
        answer = broker.SummarizeQueues(pb.SummarizeQueuesRequest(largest=largest_max))
    return QueueSummary(
        kinds={QueueKind(each.kind): KindSummary(each.queues, each.empty, each.entries) for each in answer.kinds},
        largest=[CountedQueue(QueueId(each.topic, each.queue), each.entries) for each in answer.largest],
        disk={place: DiskUse(use.files, use.apparent_bytes, use.allocated_bytes) for place, use in answer.disk.items()},
        figures=dict(answer.rocksdb),
    )
