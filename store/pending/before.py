"""The module holds what RocketMQ had delivered before Quarry took over a store: that is in files beside the log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quarry_mq.protocol.messages.property_names import TIMER_OUT_MS
from quarry_mq.protocol.names import HALF_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.message import DispatchRequest
from quarry_mq.store.pending.changes import number_of
from quarry_mq.store.pending.topics import TIMER_TOPIC

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBefore:
    """The progress says which pending messages of each kind had been delivered or resolved. Queue offsets are
    exclusive.

    `timers_read_ms`: of the timers below `timers_read`, those with an earlier time were delivered.
    """

    scheduled: Mapping[int, int] = field(default_factory=dict)
    """Queue offsets by queue number, which is the delay level less one."""
    timers_read: int = 0
    timers_read_ms: int = 0
    halves: int = 0

    def is_over(self, request: DispatchRequest) -> bool:
        """Return whether the record in a topic for pending messages is no longer pending."""
        topic, offset = request.topic, request.queue_offset
        if topic == SCHEDULE_TOPIC:
            return offset < self.scheduled.get(request.queue_number, 0)
        if topic == TIMER_TOPIC:
            out_ms = number_of(request.properties.get(TIMER_OUT_MS)) or 0
            return offset < self.timers_read and out_ms < self.timers_read_ms
        return topic == HALF_TOPIC and offset < self.halves

    def pack(self) -> bytes:
        """Return JSON, to be stored in a row."""
        return json.dumps(
            {
                "version": VERSION,
                "scheduled": {str(number): offset for number, offset in sorted(self.scheduled.items())},
                "timers_read": self.timers_read,
                "timers_read_ms": self.timers_read_ms,
                "halves": self.halves,
            }
        ).encode()

    @classmethod
    def unpack(cls, row: bytes) -> PendingBefore:
        found = json.loads(row)
        return cls(
            scheduled={int(number): offset for number, offset in found["scheduled"].items()},
            timers_read=found["timers_read"],
            timers_read_ms=found["timers_read_ms"],
            halves=found["halves"],
        )
