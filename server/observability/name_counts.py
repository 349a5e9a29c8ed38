"""Count topics and groups once, in the background, and keep the counts up to date from then on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.server.lag.measurement import RunningCount
from quarry_mq.store.metadata import GroupTable, TopicTable

ROWS_PER_STEP: Final = 500


class NameCounts:
    """Count all topics and groups but the broker's own; None before that is done. Lives on the event loop's thread."""

    def __init__(self, topics: TopicTable, groups: GroupTable) -> None:
        self._topics = topics
        self._groups = groups
        self._counts: tuple[RunningCount, RunningCount] | None = None

    def steps(self) -> Iterator[None]:
        """Count in small steps, the first time that this is called."""
        if self._counts is None:
            topic_changes, group_changes = self._topics.changes, self._groups.changes
            self._counts = (
                RunningCount(self._topics.counted(), topic_changes),
                RunningCount(self._groups.counted(), group_changes),
            )
        for count in self._counts:
            while not count.step(ROWS_PER_STEP):
                yield

    def stop(self) -> None:
        """Release the store, which is about to close."""
        self._counts = None

    @property
    def topics(self) -> int | None:
        return None if self._counts is None else self._counts[0].value(self._topics.changes)

    @property
    def groups(self) -> int | None:
        return None if self._counts is None else self._counts[1].value(self._groups.changes)
