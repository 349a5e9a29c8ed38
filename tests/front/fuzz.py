"""Sound conversations, damaged and cut anew, against the engine.

    python -m tests.front.fuzz --count 1000000 --seed 1 [--processes 2]

Each sequence is made from its number and the seed alone: one that fails is printed, and can be run again by
`--first NUMBER --count 1`. A sequence fails when an exception escapes, when it takes longer than `SEQUENCE_S`, when the
engine writes what is no frame, or when something is left of its calls after the connection is gone.
"""

from __future__ import annotations

import argparse
import logging
import resource
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from time import perf_counter, process_time
from typing import Final, NamedTuple

import structlog

from quarry_mq.protocol.h2.frames import FRAME_HEAD, FRAME_HEAD_SIZE, PREFACE
from tests.front.cases import CASES, SOUND
from tests.front.engine import BIDI, ECHO, KEEP, NOTHING, STREAM, Engine, frames_of, headers

SEQUENCE_S: Final = 1.0
"""A sequence takes a tenth of a millisecond; this is a hang."""

CUTS_MAX: Final = 4
MUTATIONS_MAX: Final = 4
CONVERSATION_SIZE_MAX: Final = 4_000
RSS_GROWTH_MAX: Final = 40 * 1024 * 1024
"""Bytes by which a process may grow between its first tenth and its end: caches fill, arenas fragment."""

SIZES: Final = (0, 1, 4, 5, 6, 8, 9, 255, 16_383, 16_384, 16_385, 0xFF_FFFF)
NUMBERS: Final = (0, 1, 2, 3, 5, 0x7FFF_FFFF, 0x8000_0001, 0xFFFF_FFFF)


def split(written: bytes) -> list[bytes]:
    """The preface and each frame of a conversation, the rest that is none."""
    pieces, position = [], 0
    if written.startswith(PREFACE):
        pieces.append(PREFACE)
        position = len(PREFACE)
    while position < len(written):
        end = len(written)
        if end - position >= FRAME_HEAD_SIZE:
            high, low, *_ = FRAME_HEAD.unpack_from(written, position)
            end = min(end, position + FRAME_HEAD_SIZE + (high << 16 | low))
        pieces.append(written[position:end])
        position = end
    return pieces


GREETING_PIECES: Final = 3
"""Preface, SETTINGS, acknowledgement: mostly left alone, so that what follows is looked at."""

POOL: Final = [
    split(case.written)
    for name, case in CASES.items()
    if len(case.written) <= CONVERSATION_SIZE_MAX
    for _ in range(4 if name in SOUND else 1)
]
FRAMES: Final = [piece for pieces in POOL for piece in pieces[1:]]


def flip_bits(random: Random, pieces: list[bytes]) -> None:
    at = random.randrange(len(pieces))
    damaged = bytearray(pieces[at])
    for _ in range(random.randint(1, 3)):
        if damaged:
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    pieces[at] = bytes(damaged)


def swap(random: Random, pieces: list[bytes]) -> None:
    first, second = random.randrange(len(pieces)), random.randrange(len(pieces))
    pieces[first], pieces[second] = pieces[second], pieces[first]


def double(random: Random, pieces: list[bytes]) -> None:
    at = random.randrange(len(pieces))
    pieces[at:at] = [pieces[at]] * random.randint(1, 3)


def drop(random: Random, pieces: list[bytes]) -> None:
    del pieces[random.randrange(len(pieces))]


def insert(random: Random, pieces: list[bytes]) -> None:
    """A frame of another conversation."""
    pieces.insert(random.randint(min(2, len(pieces)), len(pieces)), random.choice(FRAMES))


def change_head(random: Random, pieces: list[bytes]) -> None:
    """Another length, type, flags or stream."""
    at = random.randrange(len(pieces))
    if len(pieces[at]) < FRAME_HEAD_SIZE:
        return
    high, low, kind, flags, stream_id = FRAME_HEAD.unpack_from(pieces[at])
    match random.randrange(4):
        case 0:
            size = random.choice(SIZES)
            high, low = size >> 16, size & 0xFFFF
        case 1:
            kind = random.randrange(12)
        case 2:
            flags ^= random.choice((0x01, 0x04, 0x08, 0x20))
        case _:
            stream_id = random.choice((*NUMBERS, stream_id + 2))
    pieces[at] = FRAME_HEAD.pack(high, low, kind, flags, stream_id & 0xFFFF_FFFF) + pieces[at][FRAME_HEAD_SIZE:]


def change_payload(random: Random, pieces: list[bytes]) -> None:
    """A payload cut, lengthened or overwritten, in a frame whose length is right."""
    at = random.randrange(len(pieces))
    head, payload = pieces[at][:FRAME_HEAD_SIZE], bytearray(pieces[at][FRAME_HEAD_SIZE:])
    if len(head) < FRAME_HEAD_SIZE:
        return
    place = random.randint(0, len(payload))
    match random.randrange(4):
        case 0:
            del payload[place : place + random.randint(1, 8)]
        case 1:
            payload[place:place] = random.randbytes(random.randint(1, 8))
        case 2:
            payload[place : place + 4] = random.choice(NUMBERS).to_bytes(4, "big")
        case _:  # where header blocks have their lengths and indices
            payload[place : place + 1] = bytes([random.choice((0x00, 0x10, 0x20, 0x3F, 0x40, 0x7F, 0x80, 0xBE, 0xFF))])
    _, _, kind, flags, stream_id = FRAME_HEAD.unpack(head)
    pieces[at] = FRAME_HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream_id) + payload


def open_call(random: Random, pieces: list[bytes]) -> None:
    path, stream_id = random.choice((ECHO, KEEP, STREAM, BIDI)), random.randrange(1, 60)
    pieces.insert(random.randint(0, len(pieces)), headers(stream_id, path))


MUTATIONS: Final[tuple[Callable[[Random, list[bytes]], None], ...]] = (
    flip_bits, swap, double, drop, insert, change_head, change_head, change_payload, change_payload, open_call,
)  # fmt: skip


class Sequence(NamedTuple):
    cuts: list[bytes]
    handler_acts: int
    """Actions of the handler of kept calls between the cuts, a bit for each."""


def sequence(seed: int, number: int) -> Sequence:
    """The damaged conversation of that number."""
    random = Random(seed << 32 | number)
    pieces = list(random.choice(POOL))
    while random.randrange(2) == 0:
        pieces += random.choice(POOL)[GREETING_PIECES:]
    greeting = b""
    if random.randrange(10):
        greeting, pieces = b"".join(pieces[:GREETING_PIECES]), pieces[GREETING_PIECES:]
    for _ in range(random.randint(1, MUTATIONS_MAX)):
        if pieces:
            random.choice(MUTATIONS)(random, pieces)
    written = greeting + b"".join(pieces)
    places = sorted(random.randint(0, len(written)) for _ in range(random.randint(0, CUTS_MAX)))
    cuts = [written[start:end] for start, end in zip([0, *places], [*places, len(written)], strict=True)]
    return Sequence(cuts, random.getrandbits(16))


def run(each: Sequence) -> str:
    """Run a sequence and return how it ended: a code of GOAWAY, or the state of its connection."""
    engine = Engine()
    for number, cut in enumerate(each.cuts):
        engine.connection.receive(cut)
        for call in engine.kept.calls:
            if each.handler_acts >> number & 1:
                call.header("te")
                call.metadata()
                call.reply(bytes(100))
        for _ in frames_of_any(engine.written()):
            pass
        if each.handler_acts >> 15:
            engine.clock.now_s += 30.0
            engine.board.expire(engine.clock.now_s)
    connection = engine.connection
    ending = connection.state.name if connection.ended_with is None else connection.ended_with.code.name
    connection.lost()
    assert engine.retained() == NOTHING, engine.retained()
    return ending


def frames_of_any(written: bytes) -> list[object]:
    """All frames; an answer to HTTP/1 is none."""
    return [] if written.startswith(b"HTTP/1.1 ") else list(frames_of(written))


class Outcome(NamedTuple):
    endings: Counter[str]
    slowest_s: float
    grown: int
    """Bytes of resident memory more than after the first tenth."""
    cpu_s: float


def run_many(seed: int, first: int, count: int) -> Outcome:
    """Raises what escapes, with the number of the sequence."""
    configured = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    endings: Counter[str] = Counter()
    slowest_s, settled_size, began_s = 0.0, 0, process_time()
    try:
        for number in range(first, first + count):
            if number - first == count // 10:
                settled_size = resident_size()
            each = sequence(seed, number)
            started_s = process_time()
            try:
                endings[run(each)] += 1
            except BaseException as cause:
                raise AssertionError(f"--seed {seed} --first {number} --count 1: {cause!r}") from cause
            slowest_s = max(slowest_s, process_time() - started_s)
    finally:
        structlog.configure(**configured)
    assert slowest_s < SEQUENCE_S, f"a sequence took {slowest_s:.1f} s"
    return Outcome(endings, slowest_s, resident_size() - settled_size, process_time() - began_s)


def resident_size() -> int:
    with open("/proc/self/statm") as statistics:
        return int(statistics.read().split()[1]) * resource.getpagesize()


def run_in_processes(seed: int, first: int, count: int, processes: int) -> Outcome:
    share = -(-count // processes)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running = [pool.submit(run_many, seed, first + number * share, share) for number in range(processes)]
        outcomes = [each.result() for each in running]
    return Outcome(
        sum((each.endings for each in outcomes), Counter()),
        max(each.slowest_s for each in outcomes),
        max(each.grown for each in outcomes),
        sum(each.cpu_s for each in outcomes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    began_s = perf_counter()
    if arguments.processes == 1:
        outcome = run_many(arguments.seed, arguments.first, arguments.count)
    else:
        outcome = run_in_processes(arguments.seed, arguments.first, arguments.count, arguments.processes)
    print(
        f"{sum(outcome.endings.values()):,} sequences in {perf_counter() - began_s:.0f} s"
        f" ({outcome.cpu_s:.0f} s of CPU), the slowest {outcome.slowest_s * 1e3:.1f} ms,"
        f" {outcome.grown / 1024:,.0f} KiB grown"
    )
    for ending, times in outcome.endings.most_common():
        print(f"{times:>10,} {ending}")


if __name__ == "__main__":
    main()
