"""Calls end alike on every front: cancelled, late, lost, refused, failed; and how fronts start and stop."""

from __future__ import annotations

import asyncio
import socket
import struct

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front import Call, Front, FrontKind, Method, make_front
from tests.contracts.front_client import (
    BIDI,
    PATIENCE_S,
    STREAM,
    UNARY,
    Kept,
    echo,
    keep_open,
    run,
    serving,
    soon,
    start_call,
    status_of,
)

pytestmark = pytest.mark.usefixtures("transport")


# Calls that end before their handler ends them.


@pytest.mark.parametrize("path", [UNARY, STREAM, BIDI])
def test_a_cancelled_call_closes_once(kind: FrontKind, path: str) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {path: keep_open(kept, path)}) as (_, channel):
            client = start_call(channel, path)
            await soon(kept.arrived.wait())
            client.cancel()
            await soon(kept.ended.wait())
            call = kept.calls[0]
            late = asyncio.Event()
            call.on_close(late.set)
            await soon(late.wait())
            call.finish(GrpcStatus.INTERNAL, "dropped")
        assert kept.closed == [call]

    run(test())


@pytest.mark.parametrize("path", [UNARY, STREAM, BIDI])
def test_a_call_past_its_deadline_closes_once(kind: FrontKind, path: str) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {path: keep_open(kept, path)}) as (_, channel):
            for timeout in (0.2, 1, 4, 16):
                client = start_call(channel, path, timeout=timeout)
                assert await soon(client.code()) is grpc.StatusCode.DEADLINE_EXCEEDED
                if kept.calls:
                    break  # it came in before: a machine may be too busy for that
            await soon(kept.ended.wait())
        assert kept.closed == kept.calls
        assert len(kept.calls) == 1

    run(test())


@pytest.mark.parametrize("path", [UNARY, STREAM, BIDI])
def test_a_lost_connection_closes_its_calls_once(kind: FrontKind, path: str) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {path: keep_open(kept, path)}) as (_, channel):
            client = start_call(channel, path)
            await soon(kept.arrived.wait())
            await channel.close()
            await soon(kept.ended.wait())
            assert client.done()
        assert kept.closed == kept.calls
        assert len(kept.calls) == 1

    run(test())


def test_a_cancelled_stream_is_not_taken_for_a_half_close(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        halves: list[Call] = []
        method = Method(kept, streaming_in=True, streaming_out=True, on_open=kept.open, on_half_close=halves.append)
        async with serving(kind, {BIDI: method}) as (_, channel):
            client = channel.stream_stream(BIDI)()
            await soon(client.initial_metadata())
            client.cancel()
            await soon(kept.ended.wait())
        assert halves == []

    run(test())


def test_a_client_that_leaves_under_a_blocked_write_closes_the_call(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: Method(kept, streaming_out=True)}) as (_, channel):
            client = channel.unary_stream(STREAM)(b"")
            await soon(kept.arrived.wait())
            while kept.calls[0].send(bytes(1 << 20)):
                await asyncio.sleep(0)
            client.cancel()
            await soon(kept.ended.wait())
            assert kept.calls[0].send(b"dropped")
        assert kept.closed == kept.calls

    run(test())


def test_a_client_that_leaves_before_a_finished_answer_has_left_closes_the_call(kind: FrontKind) -> None:
    """A front reports answers that were not delivered: messages would stay hidden with a client that never saw them."""

    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: Method(kept, streaming_out=True)}) as (_, channel):
            client = channel.unary_stream(STREAM)(b"")
            await soon(kept.arrived.wait())
            for _ in range(32):
                kept.calls[0].send(bytes(1 << 20))
            kept.calls[0].finish()
            assert await soon(client.read())
            client.cancel()
            await soon(kept.ended.wait())
        assert kept.closed == kept.calls

    run(test())


def test_an_answer_that_has_left_whole_never_reports_a_close(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: Method(kept, streaming_out=True)}) as (_, channel):
            client = channel.unary_stream(STREAM)(b"")
            await soon(kept.arrived.wait())
            for _ in range(32):
                kept.calls[0].send(bytes(1 << 10))
            kept.calls[0].finish()
            while await soon(client.read()) is not grpc.aio.EOF:
                pass
            client.cancel()
        assert kept.closed == []

    run(test())


def test_a_finished_call_never_reports_a_close(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: Method(kept, streaming_out=True)}) as (_, channel):
            client = channel.unary_stream(STREAM)(b"")
            await soon(kept.arrived.wait())
            kept.calls[0].finish()
            kept.calls[0].on_close(lambda: kept.closed.append(kept.calls[0]))
            assert await soon(client.read()) is grpc.aio.EOF
        assert kept.closed == []

    run(test())


def test_nothing_has_begun_of_an_answer_to_a_call_that_was_gone(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: keep_open(kept, STREAM)}) as (_, channel):
            client = start_call(channel, STREAM)
            await soon(kept.arrived.wait())
            client.cancel()
            await soon(kept.ended.wait())
            call = kept.calls[0]
            call.send_all([b"status", b"message"])
            call.finish()
            told = asyncio.Event()
            call.on_close(told.set)
            await soon(told.wait())
            assert not call.has_begun

    run(test())


def test_an_answer_of_which_the_client_has_read_a_message_has_begun(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {STREAM: keep_open(kept, STREAM)}) as (_, channel):
            client = start_call(channel, STREAM)
            await soon(kept.arrived.wait())
            call = kept.calls[0]
            begun = [call.has_begun]
            call.send_all([b"status", b"message"])
            assert [await soon(client.read()) for _ in range(2)] == [b"status", b"message"]
            begun.append(call.has_begun)
            client.cancel()
            await soon(kept.ended.wait())
            assert [*begun, call.has_begun] == [False, True, True]

    run(test())


# Bad input and bad handlers.


def test_a_handler_that_raises_ends_its_call_and_nothing_else(kind: FrontKind) -> None:
    async def test() -> None:
        closed: list[str] = []

        def broken(call: Call, body: bytes) -> None:
            call.on_close(lambda: closed.append(call.path))
            raise RuntimeError("secret detail")

        methods = {
            "/t/Broken": Method(broken),
            STREAM: Method(broken, streaming_out=True),
            BIDI: Method(broken, streaming_in=True, streaming_out=True),
            UNARY: Method(echo),
        }
        async with serving(kind, methods) as (_, channel):
            internal = (grpc.StatusCode.INTERNAL, "internal error")
            assert await status_of(channel.unary_unary("/t/Broken")(b"")) == internal
            assert await status_of(channel.unary_stream(STREAM)(b"").read()) == internal
            both = channel.stream_stream(BIDI)()
            await both.write(b"")
            assert await status_of(both.read()) == internal
            assert await soon(channel.unary_unary(UNARY)(b"alive")) == b"alive"
        assert closed == ["/t/Broken", STREAM, BIDI]

    run(test())


def test_callbacks_that_raise_stop_no_others(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        ran: list[str] = []

        def broken() -> None:
            ran.append("broken")
            raise RuntimeError

        async with serving(kind, {UNARY: Method(kept)}) as (front, channel):
            client = channel.unary_unary(UNARY)(b"")
            await soon(kept.arrived.wait())
            kept.calls[0].on_close(broken)
            kept.calls[0].on_close(lambda: ran.append("second"))
            client.cancel()
            await soon(kept.ended.wait())
            done = asyncio.Event()
            front.after_pass(broken)
            front.after_pass(done.set)
            await soon(done.wait())
        assert ran == ["broken", "second", "broken"]

    run(test())


# The end of a loop pass.


def test_after_pass_runs_once_in_order_after_the_work_of_the_pass(kind: FrontKind) -> None:
    async def test() -> None:
        events: list[str] = []
        done = asyncio.Event()
        async with serving(kind, {UNARY: Method(echo)}) as (front, _):

            def nested() -> None:
                events.append("nested")
                done.set()

            def first() -> None:
                events.append("first")
                front.after_pass(nested)

            def work(name: str) -> None:
                events.append(name)
                front.after_pass(lambda: events.append(f"after {name}"))

            front.after_pass(first)
            loop = asyncio.get_running_loop()
            work("now")
            loop.call_soon(events.append, "next pass")
            await soon(done.wait())
        assert events == ["now", "first", "after now", "next pass", "nested"]

    run(test())


def test_answers_of_many_calls_can_be_given_after_the_pass(kind: FrontKind) -> None:
    """The shape of group commit: handlers queue, one callback answers them all."""

    async def test() -> None:
        waiting: list[tuple[Call, bytes]] = []
        rounds: list[int] = []

        fronts: list[Front] = []

        def commit() -> None:
            rounds.append(len(waiting))
            for call, body in waiting:
                call.reply(body)
            waiting.clear()

        def enqueue(call: Call, body: bytes) -> None:
            if not waiting:
                fronts[0].after_pass(commit)
            waiting.append((call, body))

        async with serving(kind, {UNARY: Method(enqueue)}) as (front, channel):
            fronts.append(front)
            method = channel.unary_unary(UNARY)
            answers = await soon(asyncio.gather(*[method(b"%d" % number) for number in range(100)]))
        assert answers == [b"%d" % number for number in range(100)]
        assert sum(rounds) == 100

    run(test())


# Starting and stopping.


def test_a_taken_address_is_named(kind: FrontKind) -> None:
    async def test() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            with pytest.raises(OSError, match=address):
                await make_front(kind, {}).start(address)

    run(test())


def test_two_fronts_never_share_a_port(kind: FrontKind) -> None:
    async def test() -> None:
        first = make_front(kind, {})
        address = await first.start("127.0.0.1:0")
        with pytest.raises(OSError, match=address):
            await make_front(kind, {}).start(address)
        await first.stop(0)

    run(test())


@pytest.mark.parametrize("path", [UNARY, STREAM, BIDI])
def test_stop_cancels_what_outlives_the_grace(kind: FrontKind, path: str) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {path: keep_open(kept, path)}) as (front, channel):
            client = start_call(channel, path)
            await soon(kept.arrived.wait())
            await soon(front.stop(0.05))
            await soon(kept.ended.wait())
            assert await soon(client.code()) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        assert len(kept.closed) == 1

    run(test())


@pytest.mark.parametrize("path", [UNARY, STREAM, BIDI])
def test_a_stop_can_be_hastened(kind: FrontKind, path: str) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {path: keep_open(kept, path)}) as (front, channel):
            client = start_call(channel, path)
            await soon(kept.arrived.wait())
            stopping = asyncio.ensure_future(front.stop(3_600))
            await asyncio.sleep(0.05)
            assert not stopping.done()
            await soon(front.stop(0))
            await soon(stopping)
            assert await soon(client.code()) in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    run(test())


def test_stop_lets_open_calls_end_within_the_grace(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        front = make_front(kind, {UNARY: Method(kept)})
        address = await front.start("127.0.0.1:0")
        async with grpc.aio.insecure_channel(address) as channel:
            client = start_call(channel, UNARY)
            await soon(kept.arrived.wait())
            stopping = asyncio.ensure_future(front.stop(PATIENCE_S))
            kept.calls[0].reply(b"in time")
            assert await soon(client) == b"in time"
            await soon(stopping)
        await front.stop(0)

    run(test())


def test_the_address_is_free_again_after_stop(kind: FrontKind) -> None:
    async def test() -> None:
        front = make_front(kind, {})
        address = await front.start("127.0.0.1:0")
        await front.stop(0)
        again = make_front(kind, {})
        assert await again.start(address) == address
        await again.stop(0)

    run(test())


def test_a_method_that_streams_in_only_is_refused_at_once(kind: FrontKind) -> None:
    with pytest.raises(ValueError, match=UNARY):
        make_front(kind, {UNARY: Method(echo, streaming_in=True)})


def test_pings_without_calls_are_answered_and_never_end_the_connection(kind: FrontKind) -> None:
    """The C++ client pings while it has no call open; a GOAWAY `too_many_pings` would cut it off."""

    async def test() -> None:
        front = make_front(kind, {})
        host, _, port = (await front.start("127.0.0.1:0")).rpartition(":")
        reader, writer = await soon(asyncio.open_connection(host, int(port)))
        settings, ping, acknowledge, go_away = 4, 6, 1, 7
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, settings, 0, 0, 0, 0, 0]))
        for number in range(20):
            writer.write(bytes([0, 0, 8, ping, 0, 0, 0, 0, 0]) + struct.pack(">Q", number))
            answer = None
            while answer != number:
                head = await soon(reader.readexactly(9))
                payload = await soon(reader.readexactly(int.from_bytes(head[:3], "big")))
                assert head[3] != go_away
                if head[3] == ping and head[4] == acknowledge:
                    answer = int.from_bytes(payload, "big")
        writer.close()
        await soon(writer.wait_closed())
        await front.stop(0)

    run(test())
