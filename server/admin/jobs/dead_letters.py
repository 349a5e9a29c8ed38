"""Jobs that send dead letters to their group once more, see `server.admin.dead_letter_box`."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from quarry_mq.server.admin.dead_letter_box import DeadLetterBox
from quarry_mq.server.jobs.asked import OFFSETS_MAX, DeadLetterResend
from quarry_mq.server.jobs.jobs import Running
from quarry_mq.store.errors import Invalid
from quarry_mq.store.offsets import QueueOffset

INDEX, AGAIN, NEXT, END = "index", "again", "next", "end"
"""Keys of a job's cursor.

`index`: how many of the named dead letters are done; `again`: the first one to be done of those refused before;
`next` and `end`: the offsets of the others that are to be done.
"""
COUNTED_MAX: Final = 100_000
"""Refused dead letters that are counted before the job begins."""


class DeadLetterWork:
    """Sends dead letters. A portion that was sent but not recorded before a crash is sent once more."""

    def __init__(self, box: DeadLetterBox) -> None:
        self._box = box

    def check(self, asked: DeadLetterResend) -> None:
        """Check the parameters. Raises TopicNotFound, Invalid."""
        self._box.end_of(asked.group)
        if len(asked.offsets) > OFFSETS_MAX:
            raise Invalid(f"offsets: {len(asked.offsets)} are named, at most {OFFSETS_MAX} may be")

    async def run(self, asked: DeadLetterResend, running: Running) -> None:
        cursor = running.job.cursor
        done = cursor.get(INDEX, 0)
        offsets = [QueueOffset(each) for each in asked.offsets[done:]]
        if asked.offsets and not offsets:
            return
        start = QueueOffset(max(cursor.get(NEXT, 0), self._box.next_offset(asked.group)))
        end = QueueOffset(cursor.get(END, self._box.end_of(asked.group)))
        again = None if NEXT in cursor else QueueOffset(cursor.get(AGAIN, 0))
        if running.job.total is None:
            running.expect(len(offsets) or self._box.count(asked.group, COUNTED_MAX))
        sending = self._box.portions(
            asked.group, offsets, refused_from=again, start=start, end=end, dry_run=running.job.is_dry_run
        )
        async with aclosing(sending) as portions:
            async for portion in portions:
                done += portion.looked_at
                running.did(
                    portion.looked_at,
                    {INDEX: done} if offsets else {AGAIN if portion.is_again else NEXT: portion.following, END: end},
                    {"sent": portion.sent, "refused": len(portion.refused)},
                    [f"offset {each.offset}: {each.reason}" for each in portion.refused],
                )
                running.keep()
                await running.rest()
