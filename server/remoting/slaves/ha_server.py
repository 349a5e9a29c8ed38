"""Serves the log of the broker to slaves of RocketMQ, as the master of RocketMQ's HA protocol (ADR 69).

A slave gets what is durable here, as it lies in the segment files: records, blanks and the rest of a segment behind its
blank. It must have segments of the same size, and no push reaches over the end of a segment. The files are read on a
thread of their own. The next piece is read when the slave has taken the one before: a slow slave costs the broker two
pieces.

Unlike RocketMQ's master, this one gives a slave without a log all that the broker has, not only the last segment: what
is in earlier segments would be lost to those who go back to RocketMQ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.ha import ReportMalformed, Reports, push_head
from quarry_mq.server.addresses import Address
from quarry_mq.server.tasks import Worker, until_set
from quarry_mq.store.commitlog import SegmentList
from quarry_mq.store.errors import OffsetOutOfRange
from quarry_mq.store.message import PhysicalOffset

PUSH_SIZE: Final = 256 * 1024
"""Bytes of a push at most. RocketMQ's master sends 32 KiB by default; its slave takes what fits its buffer of 4 MiB."""
HEARTBEAT_S: Final = 5.0
"""Seconds without a push after which a heartbeat is sent: a slave closes a connection that was silent for 20."""
SILENT_S: Final = 20.0
"""Seconds without a report after which a slave counts as gone: it sends one every 5."""
LOOK_S: Final = 0.02
"""Seconds between two looks whether the log has grown. Nobody waits for a slave, so nothing needs to wake its task."""
SLAVES_MAX: Final = 8

log = structlog.get_logger(__name__)


class SlaveProgress(NamedTuple):
    """The progress of an attached slave: it has the log up to `reported`, and was sent what lies below `sent`."""

    peer: str
    reported: PhysicalOffset
    sent: PhysicalOffset


class HaServer:
    """Listens for slaves, and pushes the log to them. Lives on the event loop's thread."""

    def __init__(self, segments: SegmentList, flushed_up_to: Callable[[], PhysicalOffset], clock: Clock) -> None:
        self.segments: Final = segments
        self.flushed_up_to: Final = flushed_up_to
        self.clock: Final = clock
        self.port = 0
        """The port that slaves connect to; 0 before `start`."""
        self._reader = Worker("slaves")
        self._server: asyncio.Server | None = None
        self._slaves: dict[_Slave, None] = {}

    async def start(self, address: str) -> str:
        """Listen on `host:port` and return the bound address. Raises OSError."""
        at = Address.parse(address)
        self._server = await asyncio.get_running_loop().create_server(lambda: _Slave(self), at.host, at.port)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return str(Address(at.host, self.port))

    @property
    def attached(self) -> Sequence[SlaveProgress]:
        """Return the progress of the slaves that have said where they begin."""
        return [progress for slave in self._slaves if (progress := slave.progress) is not None]

    @property
    def lags(self) -> Sequence[int]:
        """Return how many bytes of what is durable each attached slave has not reported."""
        end = self.flushed_up_to()
        return [end - each.reported for each in self.attached]

    def add(self, slave: _Slave) -> bool:
        """Note a connection; return False if there are too many."""
        if len(self._slaves) >= SLAVES_MAX:
            return False
        self._slaves[slave] = None
        return True

    def remove(self, slave: _Slave) -> None:
        """Remove a connection that has ended."""
        self._slaves.pop(slave, None)

    def read(self, at: PhysicalOffset) -> asyncio.Future[bytes]:
        """Read what is durable at an offset, up to the end of its segment and one push at most.

        The future gets OSError or OffsetOutOfRange if the segment was removed or cannot be read.
        """
        return self._reader.run(self._read, at, self.flushed_up_to())

    def _read(self, at: PhysicalOffset, end: PhysicalOffset) -> bytes:
        segments = self.segments
        base = segments.base_of(at)
        size = min(PUSH_SIZE, end - at, base + segments.segment_size - at)
        data = segments.disk.read_range(segments.path_of(at), at - base, size)
        if not data:
            raise OSError(f"the file ends before offset {at}")
        return data

    async def stop(self, grace_s: float) -> None:
        """Accept no more slaves, let those that are attached get the rest of the log within the grace, and end."""
        if self._server is not None:
            self._server.close()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + grace_s
        while loop.time() < until_s and any(each.reported < self.flushed_up_to() for each in self.attached):
            await asyncio.sleep(LOOK_S)
        for slave in list(self._slaves):
            slave.end("the broker stops")
        await self._reader.stop(drop_waiting=True)


class _Slave(asyncio.Protocol):
    """The connection of a slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._reports = Reports()
        self._writable = asyncio.Event()
        self._writable.set()
        self._heard_s = self._told_s = server.clock.monotonic_s()
        self._next: PhysicalOffset | None = None
        """The offset of the next push; None until the slave has said where it begins."""
        self._reported = PhysicalOffset(0)
        self._pushing: asyncio.Task[None] | None = None
        self._peer = ""

    @property
    def progress(self) -> SlaveProgress | None:
        """Return the slave's progress; None until it has said where it begins."""
        return None if self._next is None else SlaveProgress(self._peer, self._reported, self._next)

    # -- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        host, port = transport.get_extra_info("peername")[:2]
        self._peer = str(Address(host, port))
        if not self._server.add(self):
            log.warning("a slave is refused", peer=self._peer, reason=f"there are {SLAVES_MAX} already")
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=PUSH_SIZE)
        self._pushing = asyncio.get_running_loop().create_task(self._push())

    def connection_lost(self, _error: Exception | None) -> None:
        self.end("it has closed the connection")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            offsets = self._reports.feed(data)
        except ReportMalformed as error:
            self.end(str(error))
            return
        self._heard_s = self._server.clock.monotonic_s()
        for offset in offsets:
            self._take_report(PhysicalOffset(offset))

    def end(self, reason: str) -> None:
        """Close the connection, unless it is closed."""
        pushing, self._pushing = self._pushing, None
        if pushing is None:
            return
        log.warning("a slave is gone", peer=self._peer, reason=reason, lag_bytes=self._lag)
        pushing.cancel()
        self._server.remove(self)
        self._transport.abort()

    @property
    def _lag(self) -> int:
        return self._server.flushed_up_to() - self._reported

    # -- the protocol

    def _take_report(self, offset: PhysicalOffset) -> None:
        server, end = self._server, self._server.flushed_up_to()
        if self._next is None:
            begin = offset or server.segments.minimum
            if not server.segments.minimum <= begin <= end:
                self.end(f"its log ends at {offset}, and the log here is [{server.segments.minimum}, {end})")
                return
            self._next = self._reported = begin
            log.info("a slave is attached", peer=self._peer, begin=begin, lag_bytes=self._lag)
        elif offset > self._next:
            self.end(f"it reports {offset}, and was sent the log up to {self._next}")
        else:
            self._reported = offset

    async def _push(self) -> None:
        try:
            reason = await self._until_over()
        except (OSError, OffsetOutOfRange) as error:
            reason = f"the log cannot be read at {self._next}: {error}"
        except Exception as error:
            log.exception("callback failed", callback="the pushes to a slave")
            reason = f"an unexpected error: {error}"
        self.end(reason)

    async def _until_over(self) -> str:
        """Push what there is until the slave is silent for too long; return that."""
        server = self._server
        while True:
            now_s = server.clock.monotonic_s()
            if now_s - self._heard_s >= SILENT_S:
                return f"it has reported nothing for {SILENT_S:.0f} s"
            if self._next is None or not await until_set(self._writable, LOOK_S):
                if self._next is None:
                    await asyncio.sleep(LOOK_S)
            elif self._next < server.flushed_up_to():
                self._write(await server.read(self._next), now_s)
            else:
                if now_s - self._told_s >= HEARTBEAT_S:
                    self._write(b"", now_s)
                await asyncio.sleep(LOOK_S)

    def _write(self, data: bytes, now_s: float) -> None:
        assert self._next is not None
        self._transport.writelines((push_head(self._next, len(data)), data))
        self._next = PhysicalOffset(self._next + len(data))
        self._told_s = now_s
