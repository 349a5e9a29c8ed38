"""Turns: what an address sends beyond its share waits, and nothing of it is lost or comes in another order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from quarry_mq.protocol.h2 import frames
from quarry_mq.protocol.h2.frames import ErrorCode
from quarry_mq.protocol.h2.grpc_messages import with_prefix
from quarry_mq.server.front import FrontLimits
from quarry_mq.server.front import fairness as scheduler
from quarry_mq.server.front.fairness import (
    FRAMES_PER_TURN,
    PUT_OFF_MAX,
    SECONDS_PER_TURN,
    FairScheduler,
    address_of,
)
from quarry_mq.server.front.h2 import H2Front
from quarry_mq.server.front.h2.connection import UNLIMITED
from quarry_mq.server.front.h2.front import H2Protocol
from tests.contracts.front_client import run, soon
from tests.front.engine import BIDI, GREETING, KEEP, Engine, body_of, call, data, ended_by, frames_of, headers, statuses
from tests.front.test_abuse import stream_of
from tests.front.test_abuse_sockets import read_to_end, serving


class Passes:
    """The loop's passes, one at a time."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def later(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def next(self) -> None:
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()


class Talker:
    """A connection with so many frames left to handle."""

    def __init__(self, all_turns: FairScheduler, host: str, name: str, done: list[str]) -> None:
        self.scheduler = all_turns
        self.source = all_turns.source(host)
        all_turns.join(self.source, self)
        self.name = name
        self.done = done
        self.frames = 0
        self.listens = 0

    def say(self, count: int) -> None:
        self.frames += count
        if self.source.has_turn(self.scheduler.number):
            self.catch_up()
        else:
            self.scheduler.put_off(self.source, self)

    def catch_up(self) -> None:
        handled = min(self.frames, self.source.frames_left)
        self.source.spend(handled, 0.0)
        self.frames -= handled
        self.done += [self.name] * handled
        if self.frames:
            self.scheduler.put_off(self.source, self)

    def listen(self) -> None:
        self.listens += 1


def test_one_address_has_its_share_of_a_pass_and_others_have_theirs() -> None:
    passes, done = Passes(), list[str]()
    all_turns = FairScheduler(passes.later)
    flooding = [Talker(all_turns, "10.0.0.1", "flood", done) for _ in range(100)]
    quiet = Talker(all_turns, "10.0.0.2", "quiet", done)
    for each in flooding:
        each.say(10_000)
    quiet.say(2)
    assert done.count("flood") == FRAMES_PER_TURN
    assert done.count("quiet") == 2
    for number in range(2, 100):
        passes.next()
        quiet.say(2)
        assert done.count("flood") == number * FRAMES_PER_TURN
        assert done.count("quiet") == number * 2


def test_what_goes_beyond_a_turn_is_taken_from_the_next_ones() -> None:
    """One call may cost more than a turn: it is looked at between frames only."""
    all_turns = FairScheduler(lambda _: None)
    source = all_turns.source("10.0.0.1")
    assert source.has_turn(1)
    source.spend(3 * FRAMES_PER_TURN, 2.5 * SECONDS_PER_TURN)
    assert [source.has_turn(turn) for turn in (1, 2, 3, 4)] == [False, False, False, True]
    source.spend(100 * FRAMES_PER_TURN, 0.0)
    assert source.has_turn(200), "turns that passed without it count"
    assert source.frames_left == FRAMES_PER_TURN


def test_all_is_handled_in_the_end() -> None:
    passes, done = Passes(), list[str]()
    all_turns = FairScheduler(passes.later)
    talkers = [Talker(all_turns, f"10.0.0.{number % 3}", str(number), done) for number in range(9)]
    for each in talkers:
        each.say(1_000)
    while passes.soon:
        passes.next()
    assert [done.count(each.name) for each in talkers] == [1_000] * 9
    assert all(not each.source.put_off for each in talkers)


def test_connections_of_one_address_take_turns() -> None:
    passes, done = Passes(), list[str]()
    all_turns = FairScheduler(passes.later)
    first, second = (Talker(all_turns, "10.0.0.1", name, done) for name in ("first", "second"))
    first.say(100_000)
    second.say(2)
    for _ in range(3):
        passes.next()
    assert done.count("second") == 2


def test_an_address_that_has_too_much_put_off_is_not_read_from() -> None:
    all_turns = FairScheduler(lambda _: None)
    talkers = [Talker(all_turns, "10.0.0.1", str(number), []) for number in range(3)]
    source = talkers[0].source
    paused = []
    for size in (PUT_OFF_MAX, 1, -PUT_OFF_MAX // 4, -PUT_OFF_MAX // 4 - 1):
        source.grew(size)
        paused.append(source.is_paused)
    assert paused == [False, True, True, False]
    assert [each.listens for each in talkers] == [2, 2, 2]


def test_an_address_without_connections_is_forgotten() -> None:
    all_turns = FairScheduler(lambda _: None)
    talkers = [Talker(all_turns, "10.0.0.1", str(number), []) for number in range(2)]
    assert len(all_turns) == 1
    for each in talkers:
        all_turns.leave(each.source, each)
        all_turns.leave(each.source, each)
    assert len(all_turns) == 0
    late = Talker(all_turns, "10.0.0.1", "late", [])
    all_turns.leave(talkers[0].source, talkers[0])
    assert all_turns.source("10.0.0.1") is late.source


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
    ],
)
def test_what_an_address_is(host: str, address: str) -> None:
    assert address_of(host) == address


# -- the engine


def test_a_read_is_handled_in_parts_that_come_to_the_same() -> None:
    whole = b"".join(call(stream_of(number), b"%d" % number) for number in range(40))
    engine = Engine().greet()
    engine.connection.receive(whole, 7)
    parts = 1
    while engine.connection.backlog_size:
        engine.connection.receive(b"", 7)
        parts += 1
    assert parts == 12
    found = engine.frames()
    assert [body_of(found, stream_of(number)) for number in range(40)] == [with_prefix(b"%d" % n) for n in range(40)]


def test_half_a_frame_is_nothing_to_go_on_with() -> None:
    engine = Engine().greet()
    whole = call(1, b"x")
    engine.connection.receive(whole[:-1], 2)
    assert not engine.connection.backlog_size
    engine.connection.receive(whole[-1:], 2)
    assert statuses(engine.frames()) == {1: 0}


def test_time_ends_a_turn_as_well() -> None:
    engine = Engine().greet()
    engine.connection.receive(b"".join(call(stream_of(number)) for number in range(100)), UNLIMITED, -1.0)
    assert engine.connection.backlog_size
    assert len(statuses(engine.frames())) <= 2


def test_what_was_put_off_ends_with_its_connection() -> None:
    engine = Engine().greet()
    engine.connection.receive(headers(1, BIDI) + frames.settings({})[:9] + b"?" * 30, 1)
    assert engine.connection.backlog_size
    engine.connection.end(ErrorCode.NO_ERROR, "enough")
    engine.connection.receive(b"", 1)
    assert not engine.connection.backlog_size


# -- on sockets

READ_SIZE = 256 * 1024
"""Bytes that asyncio reads at once."""


def waiting_size(protocol: H2Protocol) -> int:
    connection = protocol._connection
    return len(protocol._put_off) + (0 if connection is None else len(connection._rest))


async def read_to_end_or(reader: asyncio.StreamReader, last: bytes) -> bool:
    """Return whether the last words came before the server closed."""
    answer = b""
    with suppress(ConnectionError):
        while last not in answer and (piece := await soon(reader.read(1 << 16))):
            answer += piece
    return last in answer


def test_a_pipeline_of_thousands_of_calls_is_answered_in_full() -> None:
    async def test() -> None:
        async with serving() as served:
            reader, writer = await served.connect(GREETING)
            writer.write(b"".join(call(stream_of(number), b"%d" % number) for number in range(5_000)))
            answer = b""
            while with_prefix(b"4999") not in answer[-200:]:
                answer += await soon(reader.read(1 << 20))
            found = list(frames_of(answer[: answer.rindex(with_prefix(b"4999"))][:-9]))
            assert len(statuses(found)) == 4_999
            writer.close()

    run(test())


def test_large_messages_pass_beside_small_ones() -> None:
    async def test() -> None:
        async with serving(FrontLimits(max_message_size=1 << 22)) as served:
            reader, writer = await served.connect(GREETING)
            body = bytes(range(256)) * 3_000
            message = with_prefix(body)
            writer.write(headers(1))
            for at in range(0, len(message), 16_000):
                writer.write(data(1, message[at : at + 16_000], last=at + 16_000 >= len(message)))
            writer.write(b"".join(call(stream_of(number), b"x") for number in range(1, 1_000)))
            writer.write(frames.window_update(0, 1 << 30) + frames.window_update(1, 1 << 30))
            answer = b""
            while len(answer) < len(message) + 999 * 20:
                answer += await soon(reader.read(1 << 20))
            writer.close()
            await asyncio.sleep(0)

    run(test())


def test_too_many_connections_of_one_address_give_way_to_its_own() -> None:
    async def test() -> None:
        async with serving(FrontLimits(max_connections_per_address=3)) as served:
            busy = await served.connect(GREETING + call(1, path=KEEP))
            idle = await served.connect(GREETING)
            await served.is_served(b"third")
            assert await served.is_served(b"fourth")
            later = [await served.connect(GREETING + call(1, path=KEEP)) for _ in range(3)]
            assert ended_by(list(frames_of(await read_to_end(idle[0])))) == ErrorCode.ENHANCE_YOUR_CALM
            assert await read_to_end(later[-1][0]) == b""
            stats = served.front.stats
            assert stats is not None
            assert stats.limits_met["connections_per_address"] >= 2
            for _, writer in (busy, idle, *later):
                writer.close()

    run(test())


@pytest.mark.parametrize(("connect_first", "bound"), [(True, 1 << 20), (False, 4 << 20)])
def test_what_waits_of_one_address_is_bounded_however_many_connections_it_has(
    monkeypatch: pytest.MonkeyPatch, connect_first: bool, bound: int
) -> None:
    """Bytes that came and wait for a turn, wherever they lie: 50 connections had the broker hold 250 MB of them."""
    monkeypatch.setattr(scheduler, "PUT_OFF_MAX", 1 << 20)
    monkeypatch.setattr(scheduler, "REFUSED_BEYOND", 4 << 20)

    async def test() -> None:
        async with serving() as served:
            assert isinstance(served.front, H2Front)
            said = (bytes(3) + b"\xfa" + bytes(5)) * 9_000 + call(1, b"end")
            clients = [await served.connect(GREETING + (b"" if connect_first else said)) for _ in range(120)]
            for _, writer in clients if connect_first else ():
                writer.write(said)
            reading = asyncio.gather(*(read_to_end_or(reader, with_prefix(b"end")) for reader, _ in clients))
            most = 0
            while not reading.done():
                most = max(most, sum(waiting_size(each) for each in served.front._protocols))
                await asyncio.sleep(0)
            assert bound // 2 < most < bound + READ_SIZE
            refused = served.front.stats.limits_met["unhandled_size"]
            assert reading.result().count(False) == refused
            assert (refused == 0) is connect_first
            for _, writer in clients:
                writer.close()

    run(test())


def test_the_shares_are_what_the_pages_say() -> None:
    assert (scheduler.FRAMES_PER_TURN, scheduler.SECONDS_PER_TURN) == (256, 0.005)
