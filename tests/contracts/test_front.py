"""Every front handles calls and streams alike, seen from a real client on a real socket."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.server.front import Call, FrontKind, FrontLimits, Method
from tests.contracts.front_client import (
    BIDI,
    STREAM,
    UNARY,
    Kept,
    echo,
    run,
    serving,
    soon,
    status_of,
)

pytestmark = pytest.mark.usefixtures("transport")


# Unary calls.


def test_a_unary_call_is_answered_at_once(kind: FrontKind) -> None:
    async def test() -> None:
        async with serving(kind, {UNARY: Method(echo)}) as (_, channel):
            assert await soon(channel.unary_unary(UNARY)(b"\x00body\xff")) == b"\x00body\xff"
            assert await soon(channel.unary_unary(UNARY)(b"")) == b""

    run(test())


def test_a_unary_call_is_answered_later(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {UNARY: Method(kept)}) as (_, channel):
            answer = channel.unary_unary(UNARY)(b"")
            await soon(kept.arrived.wait())
            kept.calls[0].reply(b"first")
            kept.calls[0].reply(b"dropped")
            kept.calls[0].finish(GrpcStatus.INTERNAL)
            assert kept.calls[0].closed
            assert await soon(answer) == b"first"
        assert kept.closed == []

    run(test())


def test_a_handler_may_refuse_with_a_status(kind: FrontKind) -> None:
    async def test() -> None:
        def refuse(call: Call, body: bytes) -> None:
            call.finish(GrpcStatus.UNAVAILABLE, "not ready: 43 %")

        async with serving(kind, {UNARY: Method(refuse), STREAM: Method(refuse, streaming_out=True)}) as (
            _,
            channel,
        ):
            refused = (grpc.StatusCode.UNAVAILABLE, "not ready: 43 %")
            assert await status_of(channel.unary_unary(UNARY)(b"")) == refused
            assert await status_of(channel.unary_stream(STREAM)(b"").read()) == refused

    run(test())


def test_the_wrong_kind_of_answer_is_a_programming_error(kind: FrontKind) -> None:
    async def test() -> None:
        refusals: list[str] = []

        def unary(call: Call, body: bytes) -> None:
            for wrong in (lambda: call.send(b""), lambda: call.send_all([b""]), call.finish):
                with pytest.raises(ValueError, match=UNARY) as caught:
                    wrong()
                refusals.append(str(caught.value))
            call.reply(b"fine")

        def stream(call: Call, body: bytes) -> None:
            with pytest.raises(ValueError, match=STREAM) as caught:
                call.reply(b"")
            refusals.append(str(caught.value))
            call.finish()

        methods = {UNARY: Method(unary), STREAM: Method(stream, streaming_out=True)}
        async with serving(kind, methods) as (_, channel):
            assert await soon(channel.unary_unary(UNARY)(b"")) == b"fine"
            assert await soon(channel.unary_stream(STREAM)(b"").read()) is grpc.aio.EOF
        assert len(refusals) == 4

    run(test())


def test_an_unknown_method_is_unimplemented(kind: FrontKind) -> None:
    async def test() -> None:
        async with serving(kind, {UNARY: Method(echo)}) as (_, channel):
            for path in ("/test.Service/Other", "/other.Service/Unary", "/unary"):
                code, _ = await status_of(channel.unary_unary(path)(b""))
                assert code is grpc.StatusCode.UNIMPLEMENTED
            assert await soon(channel.unary_unary(UNARY)(b"still here")) == b"still here"

    run(test())


def test_two_hundred_calls_at_once_are_answered_in_any_order(kind: FrontKind) -> None:
    """rmq#9035: a client may have hundreds of calls in flight."""

    async def test() -> None:
        waiting: list[tuple[Call, bytes]] = []
        all_here = asyncio.Event()

        def keep(call: Call, body: bytes) -> None:
            waiting.append((call, body))
            if len(waiting) == 200:
                all_here.set()

        async with serving(kind, {UNARY: Method(keep)}) as (_, channel):
            method = channel.unary_unary(UNARY)
            answers = [asyncio.ensure_future(method(b"%d" % number)) for number in range(200)]
            await soon(all_here.wait())
            for call, body in reversed(waiting):
                call.reply(b"re:" + body)
            assert await soon(asyncio.gather(*answers)) == [b"re:%d" % number for number in range(200)]

    run(test())


# What a handler learns about its call.


def test_metadata_names_are_lower_case_and_the_last_value_counts(kind: FrontKind) -> None:
    async def test() -> None:
        seen: list[dict[str, str]] = []

        def look(call: Call, body: bytes) -> None:
            seen.append(dict(call.metadata()))
            assert call.metadata() == call.metadata()
            call.reply(b"")

        metadata = (("x-mq-client-id", "a@1"), ("x-twice", "1"), ("x-twice", "2"), ("x-raw-bin", b"\x00\xff"))
        async with serving(kind, {UNARY: Method(look)}) as (_, channel):
            await soon(channel.unary_unary(UNARY)(b"", metadata=metadata))
        assert seen[0]["x-mq-client-id"] == "a@1"
        assert seen[0]["x-twice"] == "2"
        assert "x-raw-bin" not in seen[0]
        assert all(name == name.lower() for name in seen[0])

    run(test())


def test_metadata_and_peer_stay_readable_after_the_call_ended(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        async with serving(kind, {UNARY: Method(kept)}) as (_, channel):
            answer = channel.unary_unary(UNARY)(b"", metadata=(("x-mq-client-id", "late"),))
            await soon(kept.arrived.wait())
            answer.cancel()
            await soon(kept.ended.wait())
            call = kept.closed[0]
            assert call.metadata()["x-mq-client-id"] == "late"
            assert call.peer.startswith("127.0.0.1:")
            assert call.path == UNARY

    run(test())


def test_the_remaining_time_is_that_of_the_clients_deadline(kind: FrontKind) -> None:
    async def test() -> None:
        remaining: list[float | None] = []

        def look(call: Call, body: bytes) -> None:
            remaining.append(call.remaining_s())
            call.reply(b"")

        async with serving(kind, {UNARY: Method(look)}) as (_, channel):
            await soon(channel.unary_unary(UNARY)(b"", timeout=7))
            await soon(channel.unary_unary(UNARY)(b""))
        assert remaining[0] is not None
        assert 5 < remaining[0] < 7.5  # the client rounds its deadline up for the wire
        assert remaining[1] is None

    run(test())


def test_the_peer_is_address_and_port(kind: FrontKind) -> None:
    async def test() -> None:
        peers: list[str] = []

        def look(call: Call, body: bytes) -> None:
            peers.append(call.peer)
            call.reply(b"")

        async with serving(kind, {UNARY: Method(look)}) as (_, channel):
            await soon(channel.unary_unary(UNARY)(b""))
        host, _, port = peers[0].rpartition(":")
        assert host == "127.0.0.1"
        assert 0 < int(port) < 65536

    run(test())


# Streams of answers.


def test_a_stream_sends_several_messages_and_ends(kind: FrontKind) -> None:
    async def test() -> None:
        def three(call: Call, body: bytes) -> None:
            for number in range(3):
                assert call.send(body + b"%d" % number)
            call.finish()
            assert call.closed
            assert call.send(b"dropped")

        async with serving(kind, {STREAM: Method(three, streaming_out=True)}) as (_, channel):
            call = channel.unary_stream(STREAM)(b"m")
            assert [message async for message in call] == [b"m0", b"m1", b"m2"]
            assert await soon(call.code()) is grpc.StatusCode.OK

    run(test())


def test_messages_sent_together_arrive_one_by_one_among_others(kind: FrontKind) -> None:
    async def test() -> None:
        many = [b"", *(bytes([number]) * size for number, size in enumerate([1, 9_000, 9_000, 100_000, 5])), b""]

        def handler(call: Call, body: bytes) -> None:
            assert call.send(b"first")
            assert call.send_all([])
            assert call.send_all(many)
            assert call.send(b"last")
            call.finish()
            assert call.send_all([b"dropped"])

        async with serving(kind, {STREAM: Method(handler, streaming_out=True)}) as (_, channel):
            stream = channel.unary_stream(STREAM)(b"")
            assert [item async for item in stream] == [b"first", *many, b"last"]

    run(test())


def test_a_stream_answered_whole_right_after_the_handler_returned_loses_nothing(kind: FrontKind) -> None:
    """The shape of every receive that finds messages: the answer is given at the end of the pass."""

    async def test() -> None:
        def handler(call: Call, body: bytes) -> None:
            def answer() -> None:
                for item in (b"status", b"message", b"end"):
                    call.send(item)
                call.finish()

            asyncio.get_running_loop().call_soon(answer)

        async with serving(kind, {STREAM: Method(handler, streaming_out=True)}) as (_, channel):
            for _ in range(20):
                stream = channel.unary_stream(STREAM)(b"")
                assert [item async for item in stream] == [b"status", b"message", b"end"]

    run(test())


def test_a_stream_may_end_with_a_status_after_messages(kind: FrontKind) -> None:
    async def test() -> None:
        def fail(call: Call, body: bytes) -> None:
            call.send(b"one")
            call.finish(GrpcStatus.RESOURCE_EXHAUSTED, "enough")

        async with serving(kind, {STREAM: Method(fail, streaming_out=True)}) as (_, channel):
            call = channel.unary_stream(STREAM)(b"")
            assert await soon(call.read()) == b"one"
            assert await status_of(call.read()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "enough")

    run(test())


@pytest.mark.parametrize("streaming_in", [False, True])
def test_headers_of_a_stream_come_before_its_first_message(kind: FrontKind, streaming_in: bool) -> None:
    """The Rust client waits for the response headers of Telemetry before it does anything."""

    async def test() -> None:
        kept = Kept()
        method = Method(kept, streaming_in=streaming_in, streaming_out=True, on_open=kept.open)
        async with serving(kind, {STREAM: method}) as (_, channel):
            call = channel.stream_stream(STREAM)() if streaming_in else channel.unary_stream(STREAM)(b"")
            await soon(call.initial_metadata())
            assert not kept.calls[0].closed

    run(test())


def test_a_slow_client_slows_the_sender_down(kind: FrontKind) -> None:
    async def test() -> None:
        limits = FrontLimits(stream_buffer_size=100_000)
        body = bytes(50_000)
        sent: list[int] = []
        paused = asyncio.Event()
        finished = asyncio.Event()
        pauses: list[int] = []

        def pour(call: Call) -> None:
            while len(sent) < 400:
                sent.append(len(body))
                if not call.send(body):
                    pauses.append(len(sent))
                    paused.set()
                    call.on_drain(lambda: pour(call))
                    return
            call.finish()
            finished.set()

        method = Method(lambda call, _: pour(call), streaming_out=True)
        async with serving(kind, {STREAM: method}, limits) as (_, channel):
            call = channel.unary_stream(STREAM)(b"")
            await soon(paused.wait())
            assert not finished.is_set()
            received = [len(message) async for message in call]
        assert received == [50_000] * 400
        assert len(pauses) > 3
        assert 3 <= pauses[0] < 100  # two bodies fit, the third is above the limit; what the transport took is not kept

    run(test())


def test_drain_comes_soon_when_nothing_waits_and_never_after_the_end(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        drained: list[str] = []
        came = asyncio.Event()
        async with serving(kind, {STREAM: Method(kept, streaming_out=True)}) as (_, channel):
            call = channel.unary_stream(STREAM)(b"")
            await soon(kept.arrived.wait())
            kept.calls[0].on_drain(lambda: drained.append("open"))
            kept.calls[0].on_drain(came.set)
            await soon(came.wait())
            kept.calls[0].finish()
            kept.calls[0].on_drain(lambda: drained.append("closed"))
            assert await soon(call.read()) is grpc.aio.EOF
        assert drained == ["open"]

    run(test())


# Streams in both directions.


def test_both_sides_of_a_stream_talk(kind: FrontKind) -> None:
    async def test() -> None:
        events: list[str] = []

        def opened(call: Call) -> None:
            events.append("open")
            call.send(b"hello")

        def message(call: Call, body: bytes) -> None:
            events.append(body.decode())
            call.send(b"re:" + body)

        def half_closed(call: Call) -> None:
            events.append("half closed")
            call.send(b"bye")
            call.finish()

        method = Method(message, streaming_in=True, streaming_out=True, on_open=opened, on_half_close=half_closed)
        async with serving(kind, {BIDI: method}) as (_, channel):
            call = channel.stream_stream(BIDI)()
            assert await soon(call.read()) == b"hello"
            for body in (b"a", b"b"):
                await call.write(body)
                assert await soon(call.read()) == b"re:" + body
            await call.done_writing()
            assert await soon(call.read()) == b"bye"
            assert await soon(call.read()) is grpc.aio.EOF
            assert await soon(call.code()) is grpc.StatusCode.OK
        assert events == ["open", "a", "b", "half closed"]

    run(test())


def test_the_server_may_end_a_stream_first(kind: FrontKind) -> None:
    async def test() -> None:
        late: list[bytes] = []

        def once(call: Call, body: bytes) -> None:
            late.append(body)
            call.finish(GrpcStatus.INVALID_ARGUMENT, "no such settings")

        method = Method(once, streaming_in=True, streaming_out=True)
        async with serving(kind, {BIDI: method}) as (_, channel):
            call = channel.stream_stream(BIDI)()
            await call.write(b"settings")
            assert await status_of(call.read()) == (grpc.StatusCode.INVALID_ARGUMENT, "no such settings")
        assert late == [b"settings"]

    run(test())


def test_a_stream_stays_open_for_the_server_after_the_half_close(kind: FrontKind) -> None:
    async def test() -> None:
        kept = Kept()
        half = asyncio.Event()
        method = Method(
            kept, streaming_in=True, streaming_out=True, on_open=kept.open, on_half_close=lambda _: half.set()
        )
        async with serving(kind, {BIDI: method}) as (_, channel):
            call = channel.stream_stream(BIDI)()
            await call.done_writing()
            await soon(half.wait())
            assert not kept.calls[0].closed
            kept.calls[0].send(b"later")
            assert await soon(call.read()) == b"later"

    run(test())
