"""Runs delivery as `server.broker` builds it, on a loop whose iterations are ended by hand: no network, no waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from typing import Final

from bench.scratch_store import TOPIC, make_messages
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.delivery import (
    Delivered,
    Delivery,
    Forwarded,
    GroupState,
    ReceiveRequest,
    StateWriter,
)
from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.server.filters import TagFilter
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.native import NATIVE
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.record import StoredMessage

CLIENT: Final = "127.0.0.1@4711@1@abcdefgh"
"""A client id as long as those of the official clients."""
MESSAGES_PER_CALL: Final = 64


class NoDeadLetters:
    """A dead-letter sink that must not be used: no message is delivered that often here."""

    def forward(self, group: str, topic: str, record: StoredMessage, attempts: int, forwarded: Forwarded) -> None:
        raise AssertionError((group, topic, record.physical_offset, attempts, forwarded))


class HandLoopedDelivery:
    """Receives and acknowledges for any group."""

    def __init__(self, store: OpenStore) -> None:
        self._pass: list[Callable[[], None]] = []
        self._delivered: Sequence[Delivered] = ()
        writer = StateWriter(store.state_engine, self._pass.append)
        self._loop = asyncio.new_event_loop()
        key = HandleKey(*store.identity.handle_key(PhysicalOffset(0)), NATIVE)
        self._delivery = Delivery(
            BrokerSettings(delivery=DeliverySection(new_group_start=NewGroupStart.EARLIEST)),
            store.messages,
            GroupState.of(store.state_engine, store.offsets, key, writer),
            clock=SystemClock(),
            timers=self._loop,
            is_client_alive=lambda _: True,
            error_reporter=ErrorReporter(SystemClock(), damage_met=lambda: None, passed_over=lambda: None),
            dead_letters=NoDeadLetters(),
        )

    @property
    def inflight_count(self) -> int:
        return self._delivery.inflight_count

    def receive(self, request: ReceiveRequest) -> Sequence[Delivered]:
        """Make one receive, in its own loop iteration."""
        self._delivered = ()
        self._delivery.receive(request, 0, self._take)
        self._end_pass()
        return self._delivered

    def acknowledge(self, group: str, delivered: Iterable[Delivered]) -> None:
        """Acknowledge all messages in one loop iteration."""
        for each in delivered:
            self._delivery.acknowledge(group, TOPIC, each.receipt_handle)
        self._end_pass()

    def close(self) -> None:
        self._loop.close()

    def _take(self, delivered: Sequence[Delivered], error: Exception | None) -> None:
        if error is not None:
            raise error
        self._delivered = delivered

    def _end_pass(self) -> None:
        while self._pass:
            callbacks = self._pass.copy()
            self._pass.clear()
            for callback in callbacks:
                callback()


def request_of(group: str, queues: int, batch: int, invisible_ms: int) -> ReceiveRequest:
    return ReceiveRequest(group, TOPIC, range(queues), TagFilter.parse("*"), batch, invisible_ms, CLIENT)


def fill(store: OpenStore, random: Random, messages: int, *, body_size: int) -> None:
    """Store messages and make them visible."""
    prepared = iter(make_messages(random, messages, body_sizes=range(body_size, body_size + 1)))
    while some := list(islice(prepared, MESSAGES_PER_CALL)):
        store.messages.append(some)
    store.messages.dispatch(store.messages.flush())
    store.messages.flush_queues()
