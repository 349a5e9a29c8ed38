"""The module holds the result of reading RocketMQ's metadata, and warnings about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quarry_mq.store.metadata import Group, Topic
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.pending import PendingBefore

WARNINGS_MAX: Final = 100
"""The number of warnings kept in full; more are only counted. A million bad rows must not become a million lines."""


class DataVersion(NamedTuple):
    """A data version says how new a copy of a table is; versions are compared field by field, as RocketMQ does."""

    state_version: int
    counter: int
    timestamp_ms: int

    @property
    def row(self) -> dict[str, int]:
        """Return the version as it stands in JSON documents."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class ConsumerOffset(NamedTuple):
    """A consumer offset is the queue offset at which the group continues in the queue."""

    group: str
    queue: QueueId
    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class RocketmqMetadata:
    """The object holds the metadata that is imported. `light_offsets` are those of light queues (`%LMQ%…`).

    `warnings` are sentences for the operator: what was damaged, ambiguous or has no counterpart.
    """

    topics: list[Topic]
    groups: list[Group]
    offsets: list[ConsumerOffset]
    light_offsets: list[ConsumerOffset]
    warnings: list[str]
    pending: PendingBefore = field(default_factory=PendingBefore)


class Warnings:
    """The class collects warnings up to a limit."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._dropped = 0

    def add(self, warning: str) -> None:
        if len(self._kept) < WARNINGS_MAX:
            self._kept.append(warning)
        else:
            self._dropped += 1

    def texts(self) -> list[str]:
        """Return the warnings; the last one counts those that were not kept."""
        more = [f"and {self._dropped} more warnings"] if self._dropped else []
        return self._kept + more
