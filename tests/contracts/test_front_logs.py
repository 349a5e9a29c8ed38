"""Fronts log who called, and the request by which the call can be found on the client's side."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog

from quarry_mq.server.front import Call, FrontKind, Method, make_front
from quarry_mq.server.front.contract import VALUE_LENGTH_MAX
from tests.contracts.front_client import echo, open_channel, run, status_of

UNARY = "/t/Unary"
Headers = Sequence[tuple[str, str]]
HEADERS: Headers = [("x-mq-request-id", "4711"), ("x-mq-client-id", "host@1@0@abc")]


def broken(_call: Call, _body: bytes) -> None:
    raise RuntimeError("it is not well")


async def call_once(kind: FrontKind, method: Method, headers: Headers) -> None:
    front = make_front(kind, {UNARY: method}, access_log=True)
    address = await front.start("127.0.0.1:0")
    async with open_channel(address) as channel:
        await status_of(channel.unary_unary(UNARY)(b"", metadata=headers))
    await front.stop(1)


@pytest.mark.parametrize(("method", "events"), [(Method(echo), ["call"]), (Method(broken), ["handler failed", "call"])])
def test_a_line_about_a_call_names_the_client_and_its_request(
    kind: FrontKind, method: Method, events: Sequence[str]
) -> None:
    with structlog.testing.capture_logs() as logs:
        run(call_once(kind, method, HEADERS))
    assert [each["event"] for each in logs] == events
    for each in logs:
        assert (each["path"], each["request_id"], each["client_id"]) == (UNARY, "4711", "host@1@0@abc")
        assert each["peer"].startswith("127.0.0.1:")


def test_what_a_client_does_not_say_is_not_in_the_line(kind: FrontKind) -> None:
    with structlog.testing.capture_logs() as logs:
        run(call_once(kind, Method(echo), []))
    [line] = logs
    assert not {"request_id", "client_id"} & line.keys()


def test_a_long_id_is_cut(kind: FrontKind) -> None:
    with structlog.testing.capture_logs() as logs:
        run(call_once(kind, Method(echo), [("x-mq-request-id", "7" * 5_000)]))
    [line] = logs
    assert line["request_id"] == "7" * VALUE_LENGTH_MAX
