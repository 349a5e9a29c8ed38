"""Start the shards, restart those that end, and stop all of them.

    a shard ends …                                  what follows
    with status 2 before it was ever ready          all are stopped, and the status is 2: starting it again would only
                                                    repeat what it said
    otherwise                                       it is started again, after a pause; during the first one its
                                                    messaging ports stay open
    while all are stopping                          the supervisor ends with the last of them

A shard that was ready before is restarted: its store was whole and its settings are good, so what keeps it from
starting may go away, and the others serve meanwhile.

The shards' lines and the supervisor's own text go to the supervisor's standard output and error.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from io import FileIO
from subprocess import SubprocessError
from typing import Final, TextIO

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.process.banner import READY_LINE
from quarry_mq.server.shards.ports import Ports
from quarry_mq.server.shards.process import Child, Launch, ShardProcess
from quarry_mq.server.tasks import until_set

log = structlog.get_logger(__name__)

COLUMNS: Final = {
    "messaging": "QUARRY_NETWORK_LISTEN",
    "admin": "QUARRY_NETWORK_ADMIN",
    "http": "QUARRY_NETWORK_HTTP",
    "console": "QUARRY_NETWORK_CONSOLE",
    "store": "QUARRY_STORE_DIRECTORY",
}


class Output:
    """Write to standard output or error, unbuffered. Errors are ignored: a reader that is gone must stop nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._file = FileIO(stream.fileno(), "w", closefd=False)

    def line(self, text: bytes | str) -> None:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        rest = memoryview(data + b"\n")
        with suppress(OSError):
            while rest:
                rest = rest[self._file.write(rest) :]


def ready_text(children: Sequence[Child]) -> str:
    """Return the text printed when all shards are ready, with the addresses of each."""
    rows = [("", *COLUMNS)]
    rows += [(child.name, *(child.variables[variable] for variable in COLUMNS.values())) for child in children]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    shards = "1 shard is" if len(children) == 1 else f"{len(children)} shards are"
    return "\n  ".join([f"{shards} ready.", *lines, "clients need one of the messaging addresses"])


FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
LONG_UP_S: Final = 60.0
"""Seconds after which a shard counts as one that can start."""


class Backoff:
    """Compute the pauses of one shard: each is twice as long as the last, unless the shard ran for a minute."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S

    def pause_s(self, *, ran_s: float) -> float:
        """Return how long to wait before a shard that ran for `ran_s` seconds is restarted."""
        if ran_s >= LONG_UP_S:
            self._next_s = FIRST_PAUSE_S
        pause_s, self._next_s = self._next_s, min(LONGEST_PAUSE_S, self._next_s * 2)
        return pause_s


STATUS_COULD_NOT_RUN: Final = 2
"""Exit status of `quarry serve` for bad settings, a store that needs an operator, or a port that is taken."""
SIGNAL_STATUS: Final = 128
"""A process that a signal ended has this plus the signal's number as its status, as in shells."""

REST_OF_BANNER_S: Final = 0.1
"""Seconds that a broker has after its ready line to print its addresses, before the text on all shards follows."""


class ShardSupervisor:
    """Run all shards of one machine until they are to stop."""

    def __init__(self, launch: Launch, clock: Clock, *, output: Output, errors: Output) -> None:
        """`output` and `errors` get the lines that the shards write to theirs, each after the shard's name."""
        self._launch = launch
        self._clock = clock
        self._output = output
        self._errors = errors
        self._ports = {child.name: Ports(child.listening) for child in launch.children}
        self._running: dict[str, ShardProcess] = {}
        self._were_ready: set[str] = set()
        self._stopping = asyncio.Event()
        self._reason: str | None = None

    async def run(self) -> int:
        """Run until all shards have ended; return the worst of their last exit statuses."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._told, number.name)
        statuses = await asyncio.gather(*(self._keep(child) for child in self._launch.children))
        if self._reason is not None:
            self._errors.line(self._reason)
            return STATUS_COULD_NOT_RUN
        log.info("all shards have ended", status=max(statuses))
        return max(statuses)

    def _told(self, by: str) -> None:
        log.info("stopping all shards", by=by)
        self._stop()

    def _stop(self) -> None:
        self._stopping.set()
        for ports in self._ports.values():
            ports.close()
        for process in self._running.values():
            process.stop()

    async def _keep(self, child: Child) -> int:
        """Run a shard until all are to stop; return its last exit status."""
        backoff, status = Backoff(), 0
        while not self._stopping.is_set():
            began_s = self._clock.monotonic_s()
            ended, last_words = await self._run_once(child)
            if self._stopping.is_set() and ended == -signal.SIGTERM:
                return 0  # it had not yet set up its signal handler
            status = SIGNAL_STATUS - ended if ended < 0 else ended
            if self._stopping.is_set():
                break
            if status == STATUS_COULD_NOT_RUN and child.name not in self._were_ready:
                self._give_up(child, last_words)
                break
            pause_s = backoff.pause_s(ran_s=self._clock.monotonic_s() - began_s)
            if pause_s > FIRST_PAUSE_S:
                self._ports[child.name].close()  # clients should go to another broker rather than wait that long
            log.error(
                "a shard has ended, it is started again",
                shard=child.name,
                status=status,
                signal=_name_of(-ended),
                pause_s=pause_s,
            )
            await until_set(self._stopping, pause_s)
        return status

    async def _run_once(self, child: Child) -> tuple[int, str]:
        """Run a shard once; return its exit status or a negative signal number, and its last line on standard error."""
        prefix, last_line = f"{child.name} | ".encode(), b""

        def said(line: bytes) -> None:
            self._output.line(prefix + line)
            if line == READY_LINE.encode():
                self._ready(child)

        def told(line: bytes) -> None:
            nonlocal last_line
            self._errors.line(prefix + line)
            last_line = line

        listening = self._ports[child.name].opened()
        try:
            process = ShardProcess(self._launch.command, child.variables, listening=listening, said=said, told=told)
        except (OSError, SubprocessError) as error:
            log.error("no process could be made for a shard", shard=child.name, error=str(error))
            return 1, str(error)
        self._running[child.name] = process
        log.info("a shard was started", shard=child.name, process=process.pid)
        try:
            return await process.ended(), last_line.decode(errors="replace")
        finally:
            del self._running[child.name]

    def _ready(self, child: Child) -> None:
        is_news = child.name not in self._were_ready
        self._were_ready.add(child.name)
        if is_news and len(self._were_ready) == len(self._launch.children):
            say = partial(self._output.line, ready_text(self._launch.children))
            asyncio.get_running_loop().call_later(REST_OF_BANNER_S, say)

    def _give_up(self, child: Child, last_words: str) -> None:
        if self._reason is None:
            self._reason = f"{child.name} could not start: {last_words}"
        self._stop()


def _name_of(number: int) -> str | None:
    """Return the name of a signal; None if the number is none."""
    if number <= 0:
        return None
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)
