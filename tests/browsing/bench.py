"""An open store of small segments with messages of topics that nothing else has, and pages of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.server.admin.browsing import Found, MessageBrowser, Selected, Wanted
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import Appended, DispatchRequest, Message
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import StoreSettings
from tests.store.assembly import HOST

SEGMENT_SIZE: Final = 64 * 1024


class Bench:
    """Of one store."""

    def __init__(self, store: OpenStore, clock: ManualClock, runner: asyncio.Runner) -> None:
        self.store = store
        self.clock = clock
        self.browser = MessageBrowser(store.messages, store.expiry, lambda _: None)
        self._runner = runner
        self._names = (f"topic-{number}" for number in count())

    def topic(self) -> str:
        return next(self._names)

    def send(
        self, topic: str, queue: int = 0, body: bytes = b"body", *, system_flag: int = 0, **properties: str
    ) -> Appended:
        """Visible with the next `show`."""
        message = Message(topic, queue, body, properties, 0, HOST, HOST, system_flag=system_flag)
        (appended,) = self.store.messages.append([message])
        return appended

    def show(self) -> list[DispatchRequest]:
        """Make visible what was sent."""
        return self.store.messages.dispatch(self.store.messages.flush())

    def page(self, selected: Selected, wanted: Wanted) -> Found:
        return self._runner.run(self.browser.find(selected, wanted, TimeSlice(SystemClock())))

    def expire(self, segments: int) -> int:
        """Let the log begin so many segments later, as far as it may; returns where."""
        self.show()
        bases = self.store.expiry.bases
        if not bases:
            return self.store.expiry.minimum  # nothing was ever sent
        minimum = bases[min(segments, len(bases) - 1)]
        self.store.messages.flush_queues()
        self.store.expiry.announce(minimum)
        return self.store.expiry.retire(minimum)


@contextmanager
def bench(directory: Path, mode: QueueMode = QueueMode.ROCKSDB) -> Iterator[Bench]:
    clock = ManualClock()
    settings = StoreSettings(
        root=directory, segment_size=SEGMENT_SIZE, record_size_max=SEGMENT_SIZE // 2, queue_mode=mode
    )
    store = open_store(settings, disk=PosixDisk(), clock=clock, report=lambda _: None)
    try:
        with asyncio.Runner() as runner:
            yield Bench(store, clock, runner)
    finally:
        store.close()
