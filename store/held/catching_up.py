"""Reading the log again for the messages that wait: after a crash a little of it, for a new database all."""

from __future__ import annotations

from typing import Final

from store.commitlog import SegmentList
from store.held.messages import HeldMessages
from store.offsets import PhysicalOffset
from store.progress import Progress, ReportProgress
from store.recovery import whole_batches
from store.scan import held_requests

FLUSH_EVERY_BYTES: Final = 1 << 30
"""How much log is read again at most when this is killed."""


def bring_up_to(held: HeldMessages, segments: SegmentList, end: PhysicalOffset, report: ReportProgress) -> None:
    """Let every record below `end`, where recovery left the log's end, have its effect. Raises StoreDamaged.

    What is ahead of the log rests on records that a power cut took: that is made anew from the beginning.
    """
    if held.up_to is not None and held.up_to > end:
        held.forget_all()
    start = PhysicalOffset(max(held.up_to or 0, segments.minimum))
    flushed = start
    for batch in whole_batches(segments, start, end):
        held.put(held_requests(batch), batch.end)
        report(Progress("looking for held messages", batch.end - start, end - start))
        if batch.end - flushed >= FLUSH_EVERY_BYTES:
            held.flush()
            flushed = batch.end
    held.put((), end)
    held.flush()
