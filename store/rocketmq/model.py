"""What RocketMQ's metadata comes to, and what was odd about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quarry_mq.store.metadata import Group, Topic
from quarry_mq.store.offsets import QueueId, QueueOffset
from quarry_mq.store.pending import HeldBefore

WARNINGS_MAX: Final = 100
"""Kept in full; beyond that they are counted. A million bad rows must not become a million lines."""


class DataVersion(NamedTuple):
    """How new a copy of a table is: compared field by field, the way RocketMQ does."""

    state_version: int
    counter: int
    timestamp_ms: int

    @property
    def row(self) -> dict[str, int]:
        """As it stands in JSON documents."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


class ConsumerOffset(NamedTuple):
    """The next queue offset that the group wants of the queue."""

    group: str
    queue: QueueId
    offset: QueueOffset


@dataclass(frozen=True, slots=True)
class RocketmqMetadata:
    """Everything that is taken over. `light_offsets` are those of light queues (`%LMQ%…`).

    `warnings` are sentences for the operator: what was damaged, ambiguous or has no counterpart.
    """

    topics: list[Topic]
    groups: list[Group]
    offsets: list[ConsumerOffset]
    light_offsets: list[ConsumerOffset]
    warnings: list[str]
    held: HeldBefore = field(default_factory=HeldBefore)


class Warnings:
    """Collects warnings up to a bound."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._dropped = 0

    def add(self, warning: str) -> None:
        if len(self._kept) < WARNINGS_MAX:
            self._kept.append(warning)
        else:
            self._dropped += 1

    def texts(self) -> list[str]:
        """The warnings, the last one counting those that were not kept."""
        more = [f"and {self._dropped} more warnings"] if self._dropped else []
        return self._kept + more
