"""Jobs that move a group's next offsets, in all queues of a topic and in the lite topics that the group has read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.server.admin.administration import Administration, QueueReset
from quarry_mq.server.delivery import Delivery
from quarry_mq.server.jobs.asked import OffsetReset
from quarry_mq.server.jobs.jobs import Running
from quarry_mq.store.metadata import ConsumerOffsetTable, TopicType
from quarry_mq.store.metadata.lite import parse_light_queue_name
from quarry_mq.store.offsets import QueueId

PAGE: Final = 256
NUMBER, LITE = "queue", "lite"
"""Keys of a job's cursor: the last queue that is done; or, once all queues are, the last light queue that is done."""


class ResetWork:
    """Resets offsets. Doing a queue twice has the same result, unless the group has consumed messages in between."""

    def __init__(self, administration: Administration, delivery: Delivery, offsets: ConsumerOffsetTable) -> None:
        self._administration = administration
        self._delivery = delivery
        self._offsets = offsets

    def check(self, asked: OffsetReset) -> None:
        """Check the parameters. Raises GroupNotFound, TopicNotFound, Invalid."""
        self._administration.group(asked.group)
        self._administration.queues_to_reset(asked.topic, asked.queue)

    async def run(self, asked: OffsetReset, running: Running) -> None:
        queues = self._administration.queues_to_reset(asked.topic, asked.queue)
        has_lite = asked.queue is None and self._administration.topic(asked.topic).type is TopicType.LITE
        if running.job.total is None:
            running.expect(len(queues) + (await self._count_light(asked, running) if has_lite else 0))
        cursor = running.job.cursor
        if LITE not in cursor:
            behind = cursor.get(NUMBER, -1)
            for queue in queues:
                if queue.number > behind:
                    self._reset(asked, queue, running, {NUMBER: queue.number})
                    await running.rest()
        last: QueueId | None = QueueId(cursor[LITE], 0) if LITE in cursor else None
        while has_lite and (page := self._offsets.page_of(asked.group, last, PAGE)):
            for queue in _of_parent(page, asked.topic):
                self._reset(asked, queue, running, {LITE: queue.topic})
                await running.rest()
            last = page[-1]
            await running.rest()
        self._require_both(asked)  # a deleted group has no pages

    async def _count_light(self, asked: OffsetReset, running: Running) -> int:
        count, last = 0, None
        while page := self._offsets.page_of(asked.group, last, PAGE):
            count += sum(1 for _ in _of_parent(page, asked.topic))
            last = page[-1]
            await running.rest()
        return count

    def _reset(self, asked: OffsetReset, queue: QueueId, running: Running, cursor: dict[str, object]) -> None:
        """Reset one queue. Raises GroupNotFound or TopicNotFound for what was deleted meanwhile, StoreDamaged."""
        self._require_both(asked)
        reset = self._administration.planned(asked.group, queue, asked.target)
        if LITE in cursor and reset.previous is None:
            running.did(1, cursor, {})  # the lite topic has expired
            return
        if not running.job.is_dry_run:
            self._carry_out(asked.group, reset, is_light=LITE in cursor)
        running.did(1, cursor, {"reset": 1, "moved": int(reset.previous != reset.new)})

    def _require_both(self, asked: OffsetReset) -> None:
        self._administration.group(asked.group)
        self._administration.topic(asked.topic)

    def _carry_out(self, group: str, reset: QueueReset, *, is_light: bool) -> None:
        if is_light:
            # none of it needs to be in memory, and there are very many
            self._delivery.lite.move(group, reset.queue.topic, reset.new)
        else:
            self._delivery.reset_offset(group, reset.queue, reset.new)


def _of_parent(page: list[QueueId], parent: str) -> Iterator[QueueId]:
    """Yield the light queues that belong to the lite topics of a topic."""
    for queue in page:
        found = parse_light_queue_name(queue.topic)
        if found is not None and found[0] == parent:
            yield queue
