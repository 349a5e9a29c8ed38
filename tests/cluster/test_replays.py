"""A call of a member that somebody has recorded is not taken again: neither here nor by another member."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import grpc
import grpc.aio
import pytest

from quarry_mq.protocol.clock import ManualClock, SystemClock
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.cluster.client import PeerClient
from quarry_mq.server.admin_port.cluster.service import CHANGE_LITE, FORWARD, NUDGE, SERVICE
from quarry_mq.server.cluster.peers import ForwardedSend, LiteChange, RelayedCall
from quarry_mq.server.cluster.signing import (
    CALLERS_MAX,
    KEPT_S,
    NUMBERS_KEPT,
    UNNUMBERED_MAX,
    ClusterKeys,
    Headers,
    Number,
    Numbers,
    Replays,
)
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from tests.cluster import test_service
from tests.cluster.nodes import Node
from tests.cluster.test_service import GROUPS, KEYS, run

METHODS = {f"/{SERVICE}/{each.name}" for each in pb.DESCRIPTOR.services_by_name["ClusterService"].methods}
MADE_BEFORE = "the call was already made"


def test_each_number_is_taken_once_in_any_order() -> None:
    chance = Random(0)
    numbers = [*range(1, 2_000)]
    for at in range(0, len(numbers), 500):  # calls that overtake each other
        part = numbers[at : at + 500]
        chance.shuffle(part)
        numbers[at : at + 500] = part
    replays = Replays(ManualClock())
    for number in numbers:
        replays.take(Number(7, number))
    for number in numbers:
        with pytest.raises(NotAMember, match=MADE_BEFORE):
            replays.take(Number(7, number))
    replays.take(Number(8, 1))
    assert len(replays) == 2


def test_what_is_far_after_is_not_taken_though_it_never_came() -> None:
    replays = Replays(ManualClock())
    replays.take(Number(7, 1))
    replays.take(Number(7, NUMBERS_KEPT + 10))
    replays.take(Number(7, 11))
    for number in (0, 1, 10):
        with pytest.raises(NotAMember, match=MADE_BEFORE):
            replays.take(Number(7, number))
    replays.take(Number(7, (1 << 64) - 1))
    assert replays._callers[7].below.bit_length() <= NUMBERS_KEPT


def test_memory_does_not_grow_with_calls_and_callers_are_forgotten() -> None:
    clock = ManualClock()
    replays = Replays(clock)
    for session in range(CALLERS_MAX):
        replays.take(Number(session, 1))
    with pytest.raises(NotAMember, match="too many callers"):
        replays.take(Number(CALLERS_MAX, 1))
    for number in range(UNNUMBERED_MAX):
        replays.take_unnumbered(str(number))
    with pytest.raises(NotAMember, match="older version"):
        replays.take_unnumbered("one more")
    clock.advance(KEPT_S + 1)
    replays.take(Number(CALLERS_MAX, 1))
    replays.take_unnumbered("0")
    assert len(replays) == 2


def test_callers_draw_numbers_of_their_own() -> None:
    one, other = Numbers(), Numbers()
    assert [one.next().number for _ in range(3)] == [1, 2, 3]
    assert one.next().session != other.next().session


class Recorder(ClusterKeys):
    """Keys of a member whose calls somebody sees."""

    def __init__(self) -> None:
        super().__init__([b"key"])
        self.calls: list[tuple[str, bytes, Headers]] = []

    def sign_call(self, method: str, body: bytes, now_s: int) -> Headers:
        headers = super().sign_call(method, body, now_s)
        self.calls.append((method, body, headers))
        return headers


async def taken(done: list[str], peer: PeerClient) -> None:
    """Make a call for an operator, and note its answers."""

    async def take(answer: bytes) -> None:
        done.append(f"answered {answer.decode()}")

    await peer.relay(RelayedCall("All/Well", b"once", "ops", "signature", "1.2.3.4:5"), take)


async def repeated(address: str, method: str, body: bytes, headers: Headers) -> str:
    async with grpc.aio.insecure_channel(address) as typed:
        channel: Any = typed
        try:
            await channel.unary_unary(method)(body, metadata=headers, timeout=10)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "OK"


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What members' calls have done here."""
    done: list[str] = []

    def take_forwarded(send: ForwardedSend, answered: Callable[[bytes | None], None]) -> None:
        done.append(f"stored {send.client_id}")
        answered(b"")

    def change_lite(change: LiteChange, answered: Callable[[Exception | None], None]) -> None:
        done.append(f"changed {change.client_id}")
        answered(None)

    groups = GROUPS._replace(take_forwarded=take_forwarded, change_lite=change_lite)
    monkeypatch.setattr(test_service, "GROUPS", groups)
    return done


def test_no_call_that_was_recorded_can_be_made_again(done: list[str]) -> None:
    async def test(_node: Node, address: str) -> None:
        seen = Recorder()
        peer = PeerClient(address, seen, SystemClock(), member="m0")
        await peer.exchange("m1", "m1:8082", None, 10)
        await peer.nudge("m1", "m1:8082")
        await peer.confirm()
        await peer.consumed(1, [])
        for _ in range(2):  # the same bytes twice are two sends, as two calls
            await peer.forward([ForwardedSend("a", "1.2.3.4:5", b"x")])
        await peer.change_lite(LiteChange("b", b"y"))
        await peer.overview()
        await peer.left_in_order("orders")
        await taken(done, peer)
        await peer.close()
        assert done == ["stored a", "stored a", "changed b", "answered onceops"]
        assert {method for method, _, _ in seen.calls} == METHODS
        for method, body, headers in seen.calls:
            assert await repeated(address, method, body, headers) == f"UNAUTHENTICATED: {MADE_BEFORE}", method
        assert done == ["stored a", "stored a", "changed b", "answered onceops"]

    run(test)


def test_a_call_to_one_member_is_none_to_another(done: list[str]) -> None:
    async def test(_node: Node, address: str) -> None:
        peer = PeerClient(address, KEYS, SystemClock(), member="m7")
        for call in (
            peer.forward([ForwardedSend("a", "1.2.3.4:5", b"x")]),
            peer.change_lite(LiteChange("b", b"y")),
            peer.confirm(),
        ):
            with pytest.raises(MemberUnreachable, match="the call was meant for member 'm7'"):
                await call
        await peer.close()
        assert done == []

    run(test)


def test_members_of_an_older_version_are_understood_and_their_changes_come_once(done: list[str]) -> None:
    """They number no calls: of the same bytes within the same second one is taken."""
    forward = pb.ForwardRequest(sends=[pb.Send(client_id="a", peer="1.2.3.4:5", request=b"x")]).SerializeToString()
    change = pb.ChangeLiteRequest(client_id="b", request=b"y").SerializeToString()
    nudge = pb.NudgeRequest(name="m1", address="m1:8082").SerializeToString()

    async def test(_node: Node, address: str) -> None:
        now_s = SystemClock().wall_ms() // 1000
        for method, body in ((FORWARD, forward), (CHANGE_LITE, change)):
            headers = KEYS.sign_call(method, body, now_s)
            assert await repeated(address, method, body, headers) == "OK"
            assert await repeated(address, method, body, headers) == f"UNAUTHENTICATED: {MADE_BEFORE}"
            later = KEYS.sign_call(method, body, now_s + 1)
            assert await repeated(address, method, body, later) == "OK"
        for _ in range(2):  # it changes nothing to hear it twice
            assert await repeated(address, NUDGE, nudge, KEYS.sign_call(NUDGE, nudge, now_s)) == "OK"
        assert done == ["stored a"] * 2 + ["changed b"] * 2

    run(test)


def test_what_is_not_signed_takes_no_number(done: list[str]) -> None:
    async def test(_node: Node, address: str) -> None:
        seen = Recorder()
        peer = PeerClient(address, seen, SystemClock())
        await peer.confirm()
        method, body, _headers = seen.calls[0]
        request = pb.ConfirmRequest.FromString(body)
        request.once.number = 1_000_000
        forged = request.SerializeToString()
        assert (await repeated(address, method, forged, _headers)).startswith("UNAUTHENTICATED: the call is not signed")
        await peer.confirm()
        await peer.close()

    run(test)
