"""Measures the cost of storing a message and making it visible, without any network.

The peer is the physical limit: the same bytes in the same portions, copied by a bare loop into a mapped file that zeros
were written to (and under `sync` followed by the same fdatasync). The ratio is the share of the machine's capacity that
is left after encoding, checksums, offset assignment and consume queues.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate, measure
from bench.scratch_store import make_messages, scratch_store
from quarry_mq.kv.options import MIB
from quarry_mq.store.message import Message
from quarry_mq.store.message_store import MessageStore
from quarry_mq.store.settings import Durability

QUESTION: Final = "How fast does one process store 1 KiB messages and make them visible, without network?"
PEER: Final = {
    Durability.ASYNC: "same bytes copied into a mapped file",
    Durability.SYNC: "same bytes copied into a mapped file, fdatasync",
}
Load = tuple[Durability, int]
"""The durability of a call, and the number of its messages."""

TARGETS_PER_SECOND: Final[dict[Load, int]] = {(Durability.ASYNC, 1): 80_000, (Durability.ASYNC, 64): 200_000}
"""Targets of the hot path on one core, in messages per second."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Calls per sample of each load: a flush costs as much as hundreds of appends."""

    calls: dict[Load, int]
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(
        {
            (Durability.ASYNC, 1): 20_000,
            (Durability.ASYNC, 64): 500,
            (Durability.SYNC, 1): 250,
            (Durability.SYNC, 64): 100,
        },
        rounds=7,
    ),
    Scale.QUICK: Sizes(
        {
            (Durability.ASYNC, 1): 5_000,
            (Durability.ASYNC, 64): 125,
            (Durability.SYNC, 1): 50,
            (Durability.SYNC, 64): 25,
        },
        rounds=3,
    ),
    Scale.TINY: Sizes(
        {(Durability.ASYNC, 1): 20, (Durability.ASYNC, 64): 2, (Durability.SYNC, 1): 2, (Durability.SYNC, 64): 2},
        rounds=1,
    ),
}


def run(options: Options) -> list[Case]:
    sizes = SIZES[options.scale]
    random = Random(options.seed)
    return [_case(options.scratch, random, load, sizes) for load in sizes.calls]


def _case(scratch: Path, random: Random, load: Load, sizes: Sizes) -> Case:
    durability, per_call = load
    calls = sizes.calls[load]
    directory = scratch / f"{durability.value}-{per_call}"
    directory.mkdir()
    with scratch_store(directory / "store", durability) as store:
        messages = store.messages
        # the first append to a queue looks its next offset up; the benchmark does not measure that
        [first] = _portions(random, 1, 64)
        record_size = messages.append(first)[0].size

        def ours() -> Sample:
            portions = _portions(random, calls, per_call)
            return measure(lambda: _append(messages, portions, durability) * per_call)

        names = (directory / f"bare-{number}" for number in count())

        def peer() -> Sample:
            portion = random.randbytes(record_size * per_call)
            with _MappedFile(next(names), len(portion) * calls, durability) as file:
                return measure(lambda: file.fill(portion, calls) * per_call)

        samples = alternate(sizes.rounds, ours, peer)
    details: dict[str, object] = {
        "durability": durability.value,
        "messages_per_call": per_call,
        "record_bytes": record_size,
    }
    target = TARGETS_PER_SECOND.get(load)
    if target is not None:
        details["target_per_second"] = target
    return Case(
        name=f"{durability.value}, {per_call} per call",
        unit="messages",
        peer=PEER[durability],
        ours=samples[0],
        theirs=samples[1],
        details=details,
    )


def _portions(random: Random, calls: int, per_call: int) -> list[list[Message]]:
    messages = make_messages(random, calls * per_call)
    return [messages[at : at + per_call] for at in range(0, len(messages), per_call)]


def _append(store: MessageStore, portions: Sequence[Sequence[Message]], durability: Durability) -> int:
    """Store and dispatch each portion as a broker's batch does; under `async` it flushes on a timer instead."""
    if durability is Durability.SYNC:
        for portion in portions:
            store.append(portion)
            store.dispatch(store.flush())
    else:
        for portion in portions:
            store.append(portion)
            store.dispatch(store.appended_up_to)
    return len(portions)


class _MappedFile:
    """A mapped file that zeros were written to; it is removed at the end."""

    def __init__(self, path: Path, size: int, durability: Durability) -> None:
        self._path = path
        self._syncs = durability is Durability.SYNC
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.truncate(self._descriptor, size)
        for at in range(0, size, MIB):
            os.pwrite(self._descriptor, bytes(min(MIB, size - at)), at)
        os.fsync(self._descriptor)
        self._map = mmap.mmap(self._descriptor, size)

    def fill(self, portion: bytes, times: int) -> int:
        mapping, size = self._map, len(portion)
        for at in range(0, times * size, size):
            mapping[at : at + size] = portion
            if self._syncs:
                os.fdatasync(self._descriptor)
        return times

    def __enter__(self) -> _MappedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._map.close()
        os.close(self._descriptor)
        self._path.unlink()
