"""Run the process of one shard: start it, pass on its output, and stop it.

A shard is a new program. What the supervisor needs to know goes to it as one text.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Final, Literal, Self

from quarry_mq.server.process.banner import WAITS
from quarry_mq.server.shards.ports import pass_on, passed_numbers

LINE_BYTES_MAX: Final = 1_048_576
"""Bytes of a line; a longer line is passed on in parts."""
PARENT_DEATH_SIGNAL: Final = 1
"""The option PR_SET_PDEATHSIG, see prctl(2)."""

_libc: Final = ctypes.CDLL(None, use_errno=True)

Heard = Callable[[bytes], None]
"""Takes a line without its end."""


class ShardProcess:
    """A running child. It gets SIGTERM when this process ends, whatever ends it, a kill included.

    It must be made on the main thread, while there is no other: the kernel sends the signal when the thread that made
    the child ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        listening: Sequence[int] = (),
        said: Heard,
        told: Heard,
    ) -> None:
        """`variables` go over the environment of this process; `listening` are sockets that the child gets.

        `said` gets lines of standard output, `told` of standard error. Raises OSError when no process can be made.
        """
        self._process = subprocess.Popen(
            command,
            pass_fds=passed_numbers(listening),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # a Ctrl-C at the terminal reaches the supervisor alone: a second signal would hasten the children's stop
            process_group=0,
            preexec_fn=partial(_prepare, os.getpid(), variables, listening),  # noqa: PLW1509 - there is one thread
        )
        self._streams = ((self._process.stdout, _Lines(said)), (self._process.stderr, _Lines(told)))

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """Ask the child to stop cleanly, or more quickly if it was asked already.

        The signal is SIGTERM: a Python that still loads modules answers an interrupt with a stack trace.
        """
        self._process.terminate()

    async def ended(self) -> int:
        """Pass on the child's lines until it ends. Return its exit status, or the negative number of a signal."""
        await asyncio.gather(*(_passed_on(stream, lines) for stream, lines in self._streams))
        return self._process.wait()  # at once: the kernel has closed what it had open


async def _passed_on(stream: IO[bytes] | None, lines: _Lines) -> None:
    await asyncio.get_running_loop().connect_read_pipe(lambda: lines, stream)
    await lines.ended


class _Lines(asyncio.Protocol):
    def __init__(self, heard: Heard) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._heard = heard
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._heard(line)
        if len(self._rest) > LINE_BYTES_MAX:
            self._heard(self._rest)
            self._rest = b""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        if self._rest:
            self._heard(self._rest)
        self.ended.set_result(None)


def _prepare(parent: int, variables: Mapping[str, str], listening: Sequence[int]) -> None:
    """Prepare the child before it becomes the broker: only here is its process id known."""
    os.environ.update(variables)
    os.environ[WAITS] = "1"
    if listening:
        os.environ.update(pass_on(listening))
    _end_with(parent)


def _end_with(parent: int) -> None:
    """Have the kernel send SIGTERM when the parent ends. Raises when it has ended already."""
    if sys.platform != "linux":
        return
    if _libc.prctl(PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM)) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        raise ProcessLookupError("the supervisor has ended")


SHARDS_MAX: Final = 100
"""Most shards: the text is one argument of a program, whose size is limited, as are the ports of a machine."""


@dataclass(frozen=True, slots=True)
class Child:
    """Describe one broker that the supervisor runs."""

    name: str
    variables: Mapping[str, str]
    """Environment variables with the broker's own settings, put over the supervisor's own environment."""
    listening: Sequence[str] = ()
    """Ports, as `host:port`, that stay open while the broker is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a supervisor needs to know. It holds no secret, since lists of processes show it."""

    command: Sequence[str]
    """The command that starts one broker."""
    children: Sequence[Child]
    log_format: Literal["auto", "json", "console"]
    log_level: str

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(children=[Child(**each) for each in values.pop("children")], **values)
