"""Limits of a front: sizes of messages and headers, and the number of open calls."""

from __future__ import annotations

import grpc
import grpc.aio

from quarry_mq.server.front import Call, FrontKind, FrontLimits, Method
from tests.contracts.front_client import (
    UNARY,
    Kept,
    echo,
    run,
    serving,
    soon,
    status_of,
)


def test_a_message_above_the_limit_is_refused_and_the_next_one_served(kind: FrontKind) -> None:
    async def test() -> None:
        limits = FrontLimits(max_message_size=10_000)
        seen: list[int] = []

        def count(call: Call, body: bytes) -> None:
            seen.append(len(body))
            call.reply(b"")

        async with serving(kind, {UNARY: Method(count)}, limits) as (_, channel):
            method = channel.unary_unary(UNARY)
            assert (await status_of(method(bytes(10_001))))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await status_of(method(bytes(10_000))))[0] is grpc.StatusCode.OK
        assert seen == [10_000]

    run(test())


def test_a_method_may_take_less(kind: FrontKind) -> None:
    async def test() -> None:
        seen: list[int] = []

        def count(call: Call, body: bytes) -> None:
            seen.append(len(body))
            call.reply(b"")

        async with serving(kind, {UNARY: Method(count, size_max=1_000)}) as (_, channel):
            method = channel.unary_unary(UNARY)
            assert (await status_of(method(bytes(1_001))))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await status_of(method(bytes(1_000))))[0] is grpc.StatusCode.OK
        assert seen == [1_000]

    run(test())


def test_an_answer_may_be_larger_than_a_request(kind: FrontKind) -> None:
    async def test() -> None:
        def large(call: Call, body: bytes) -> None:
            call.reply(bytes(20_000_000))

        async with serving(kind, {UNARY: Method(large)}) as (_, channel):
            assert len(await soon(channel.unary_unary(UNARY)(b""))) == 20_000_000

    run(test())


def test_headers_above_the_limit_are_refused(kind: FrontKind) -> None:
    async def test() -> None:
        limits = FrontLimits(max_metadata_size=8192)
        async with serving(kind, {UNARY: Method(echo)}, limits) as (_, channel):
            method = channel.unary_unary(UNARY)
            code, _ = await status_of(method(b"", metadata=(("x-long", "a" * 20_000),)))
            assert code is not grpc.StatusCode.OK
            assert await soon(method(b"short", metadata=(("x-long", "a" * 2_000),))) == b"short"

    run(test())


def test_calls_above_the_limit_are_refused(kind: FrontKind) -> None:
    """rmq#3277, rmq#5417: waiting work is bounded."""

    async def test() -> None:
        kept = Kept()
        async with serving(kind, {UNARY: Method(kept)}, FrontLimits(max_open_calls=1)) as (_, channel):
            method = channel.unary_unary(UNARY)
            first = method(b"")
            await soon(kept.arrived.wait())
            assert (await status_of(method(b"")))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
            kept.calls[0].reply(b"first")
            assert await soon(first) == b"first"
        assert len(kept.calls) == 1

    run(test())
