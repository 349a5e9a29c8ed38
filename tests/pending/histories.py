"""Random records of messages that wait, in a log of their own, and a plain model of which ones still do."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from quarry_mq.protocol.messages.property_names import (
    CHECKED_TIMES,
    DELIVER_AT_MS,
    DEQUEUED_MS,
    RECALLED_KEY,
    ROLL_TIMES,
    TAGS,
    TIMER_OUT_MS,
    UNIQUE_KEY,
)
from quarry_mq.protocol.messages.system_flag import TransactionState
from quarry_mq.protocol.names import HALF_TOPIC, OPERATION_TOPIC, SCHEDULE_TOPIC
from quarry_mq.store.message import Appended, Message, QueueOffset
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.pending import DueMessage, HalfMessage, PendingMessages, Resolution
from quarry_mq.store.pending.rows import OPERATION_DONE, TIMER_TOPIC
from quarry_mq.store.record.properties import DELAY_LEVELS_MS
from quarry_mq.store.settings import CHECK_AFTER_MS
from tests.store.assembly import message


@dataclass
class Model:
    """What waits, and how transactions ended, by the words of docs/formats/held-messages.md."""

    timers: dict[str, DueMessage] = field(default_factory=dict)
    halves: dict[str, HalfMessage] = field(default_factory=dict)
    resolved: dict[QueueOffset, Resolution] = field(default_factory=dict)

    def check(self, pending: PendingMessages) -> None:
        assert sorted(pending.due(2**62, 10_000)) == sorted(self.timers.values())
        assert {each.message_id: each for each in pending.halves(QueueOffset(0), 10_000)} == self.halves
        for message_id, half in self.halves.items():
            assert pending.half_of(message_id) == pending.half(half.queue_offset) == half
            assert pending.resolution(half.queue_offset) is None
        for offset, resolution in self.resolved.items():
            assert pending.half(offset) is None
            assert pending.resolution(offset) is resolution


class History:
    """Appends to a store what comes into its mind, and tells a model."""

    def __init__(self, random: Random, store: MessageStore) -> None:
        self.random = random
        self.store = store
        self.model = Model()
        self._number = 0

    def step(self) -> None:
        """One record, or the two of a commit. It is not dispatched."""
        begins = (self._ordinary, self._timer, self._scheduled, self._half)
        self.random.choice(
            (*begins, *begins, self._copy, self._carry_over, self._recall, self._resolve, self._check_again)
        )()

    def _append(self, *messages: Message) -> list[Appended]:
        return self.store.append(messages)

    def _next_id(self) -> str:
        self._number += 1
        return f"ID-{self._number}"

    def _ordinary(self) -> None:
        self._append(message("orders", self.random.randrange(3), TIMER_NOTE="x", UNIQ_KEY=self._next_id()))

    def _timer(self) -> None:
        message_id, due_ms = self._next_id(), self.random.randrange(1_000, 100_000)
        properties = {TIMER_OUT_MS: str(due_ms // 1_000 * 1_000), UNIQUE_KEY: message_id}
        if self.random.random() < 0.5:
            properties[DELIVER_AT_MS] = str(due_ms)
        else:
            due_ms = due_ms // 1_000 * 1_000
        [at] = self._append(_with(TIMER_TOPIC, properties))
        self.model.timers[message_id] = DueMessage(due_ms, at.physical_offset, at.size)

    def _scheduled(self) -> None:
        message_id, level = self._next_id(), self.random.randrange(1, 19)
        [at] = self._append(message(SCHEDULE_TOPIC, level - 1, UNIQ_KEY=message_id, DELAY=str(level)))
        due_ms = at.store_timestamp_ms + DELAY_LEVELS_MS[level - 1]
        self.model.timers[message_id] = DueMessage(due_ms, at.physical_offset, at.size)

    def _copy(self) -> None:
        """Ours, or RocketMQ's, which does not say of what."""
        if not self.model.timers:
            return
        message_id = self.random.choice(list(self.model.timers))
        copy = _with("orders", {UNIQUE_KEY: message_id, DEQUEUED_MS: "1"})
        if self.random.random() < 0.8:
            original = self.model.timers.pop(message_id)
            copy = copy._replace(prepared_transaction_offset=original.physical_offset)
        elif self.model.timers[message_id].physical_offset == 0:
            del self.model.timers[message_id]  # RocketMQ's copies name offset 0, by chance the right one
        self._append(copy)

    def _carry_over(self) -> None:
        """Ours, as it is done before the log's beginning expires."""
        if not self.model.timers:
            return
        message_id = self.random.choice(list(self.model.timers))
        before = self.model.timers[message_id]
        properties = {UNIQUE_KEY: message_id, DELIVER_AT_MS: str(before.due_ms), ROLL_TIMES: "1"}
        again = _with(TIMER_TOPIC, properties)._replace(prepared_transaction_offset=before.physical_offset)
        [at] = self._append(again)
        self.model.timers[message_id] = DueMessage(before.due_ms, at.physical_offset, at.size)

    def _recall(self) -> None:
        """Ours, or RocketMQ's, which is found by time and id."""
        waiting = [each for each, due in self.model.timers.items() if self._topic_of(due) == TIMER_TOPIC]
        if not waiting:
            return
        message_id = self.random.choice(waiting)
        due = self.model.timers.pop(message_id)
        recall = _with(TIMER_TOPIC, {RECALLED_KEY: f"orders+{message_id}", DELIVER_AT_MS: str(due.due_ms)})
        if self.random.random() < 0.5:
            recall = recall._replace(prepared_transaction_offset=due.physical_offset)
        self._append(recall)

    def _topic_of(self, due: DueMessage) -> str:
        found = self.store.reader.decode(due.physical_offset)
        return getattr(found, "topic", "")

    def _half(self) -> None:
        message_id = self._next_id()
        self._remember(message_id, self._append(message(HALF_TOPIC, UNIQ_KEY=message_id)))

    def _check_again(self) -> None:
        """RocketMQ writes the half message anew."""
        if not self.model.halves:
            return
        message_id = self.random.choice(list(self.model.halves))
        self._remember(message_id, self._append(_with(HALF_TOPIC, {UNIQUE_KEY: message_id, CHECKED_TIMES: "1"})))

    def _remember(self, message_id: str, appended: list[Appended]) -> None:
        [at] = appended
        self.model.halves[message_id] = HalfMessage(
            at.queue_offset, at.physical_offset, at.size, at.store_timestamp_ms + CHECK_AFTER_MS, message_id
        )

    def _resolve(self) -> None:
        if not self.model.halves:
            return
        message_id = self.random.choice(list(self.model.halves))
        half = self.model.halves.pop(message_id)
        offset = half.queue_offset
        operation = _with(OPERATION_TOPIC, {TAGS: OPERATION_DONE}, b"%d," % offset)
        if self.random.random() < 0.5:
            self.model.resolved[offset] = Resolution.ROLLED_BACK
            self._append(operation)
            return
        self.model.resolved[offset] = Resolution.COMMITTED
        committed = message("orders", UNIQ_KEY=message_id)._replace(
            system_flag=TransactionState.COMMIT, prepared_transaction_offset=half.physical_offset
        )
        self._append(*([committed, operation] if self.random.random() < 0.8 else [committed]))


def _with(topic: str, properties: dict[str, str], body: bytes = b"body") -> Message:
    return message(topic, body=body)._replace(properties=properties)
