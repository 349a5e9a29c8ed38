"""A promoted copy has all that it acknowledged, and nothing that an old primary alone had is removed."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas import replica as replica_module
from quarry_mq.server.replicas.connection import Connection, ReplicaTls, connect
from quarry_mq.server.replicas.intake import Intake
from quarry_mq.server.replicas.role import Role, RoleFiles
from quarry_mq.server.replicas.shipment import Shipment
from quarry_mq.server.replicas.wire import Ack, Frame
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.state.state_log import NO_CURSOR
from tests.e2e.broker import until
from tests.follower.test_followed_store import log_bytes
from tests.replicas.copies import Copies
from tests.replicas.test_connections import LOOPBACK, Follower, Shard
from tests.replicas.test_copies import SEGMENT_SIZE, Primary, state_of_log
from tests.replicas.test_crashes import Machine
from tests.replicas.test_later_primaries import answering
from tests.store.assembly import message

NOBODY = Address(LOOPBACK, 9)


def fill(primary: Primary, end: int) -> None:
    """Send until the log has this end."""
    while primary.store.messages.appended_up_to < end:
        primary.store.messages.append([message("orders", 0, body=bytes(1000))])
    primary.store.messages.dispatch(primary.store.messages.flush())


def copied(folder: Path, steps: int) -> Follower:
    """A copy in `b` of a primary in `a` that has lived; both have ended."""
    with closing(Shard(folder / "a")) as a:
        a.live(steps)
        with closing(Follower(folder / "b", a.address)) as b:
            until(a.has_all, "b has all")
    return b


def demote(root: Path, role: Role) -> None:
    """Let an old primary begin as a copy, as it does when it hears of the new one."""
    RoleFiles(PosixCopyingDisk(), root).save(replace(role, is_primary=False))


@pytest.mark.parametrize("is_asked_before_its_start", [False, True])
def test_a_copy_that_died_is_promoted_with_all_that_it_acknowledged(
    tmp_path: Path, is_asked_before_its_start: bool
) -> None:
    primary = Primary(tmp_path, Random(1), expires=False)
    fill(primary, 1)
    store, machine = primary.store, Machine(1)
    copy = machine.start()
    shipment = Shipment(store.segments, store.messages, state_of_log(store), at=PhysicalOffset(0), cursor=NO_CURSOR)
    intake = Intake(copy)

    def sent() -> Ack:
        for kind, body in shipment.parts(is_beat_due=True):
            intake.take(Frame(kind, 1, memoryview(b"".join(body))))
        return intake.commit()

    sent()
    copy.flush()
    for _ in range(20):  # messages without a change of rows
        fill(primary, store.messages.appended_up_to + 1)
        acked = sent()
    assert acked.flushed == acked.position == store.messages.appended_up_to
    machine.crash(power_loss=True)
    assert machine.start(is_promoted=is_asked_before_its_start).close_for_promotion() == acked.flushed
    store.close()


def test_a_copy_that_was_emptied_is_not_promoted(tmp_path: Path) -> None:
    """The machine died while the copy was emptied. As the primary it would empty all others."""
    copied(tmp_path, 30).files.ask("emptying")
    rmtree(tmp_path / "b" / "quarry")
    refused = CliRunner().invoke(app, ["replica", "promote", "--store", str(tmp_path / "b"), "--yes"])
    assert refused.exit_code == 2
    RoleFiles(PosixCopyingDisk(), tmp_path / "b").ask("promote")
    with closing(Follower(tmp_path / "b", NOBODY)) as b:
        until(lambda: bool(b.said), "b looks for a primary")
    assert not b.is_promoted
    assert not b.files.is_asked("promote")


def test_requests_end_with_a_promotion(tmp_path: Path) -> None:
    """A copy that was to be seeded again is promoted: later, as an old primary, it must not be emptied."""
    copied(tmp_path, 10).files.ask("seed")
    with closing(Follower(tmp_path / "b", NOBODY)) as b:
        until(lambda: bool(b.said), "b looks for a primary")
        b.promoted()
    assert not b.files.is_asked("promote")
    assert not b.files.is_asked("seed")


def test_what_only_an_old_primary_has_is_kept_when_its_store_is_seeded_again(tmp_path: Path) -> None:
    """The log of the new primary begins above the parting by now."""
    with closing(Shard(tmp_path / "a", expires=False)) as a:
        a.live(10)
        with closing(Follower(tmp_path / "b", a.address)) as b:
            until(a.has_all, "b has all")
            b.promoted()
        a.live(40)
        role, end = a.side.role, a.life.store.messages.appended_up_to
    demote(tmp_path / "a", role)
    promoted = b.files.load()
    assert promoted is not None
    with closing(Shard(tmp_path / "b", role=promoted)) as new:
        fill(new.life, end + 3 * SEGMENT_SIZE)
        new.life._expire()
        new.life._expire()
        assert new.life.store.segments.minimum > promoted.epochs[-1].start
        with closing(Follower(tmp_path / "a", new.address)) as follower:
            until(new.has_all, f"the old primary has all: {follower.error}")
    kept = sum(path.stat().st_size for path in (tmp_path / "a" / "commitlog" / "broken").iterdir())
    assert kept > 0.9 * (end - promoted.epochs[-1].start), "all but the blank ends of segments"


def test_an_old_primary_whose_log_begins_above_the_parting_is_seeded_again(tmp_path: Path) -> None:
    with closing(Shard(tmp_path / "a", expires=False)) as a:
        fill(a.life, 1)
        with closing(Follower(tmp_path / "b", a.address)) as b:
            until(a.has_all, "b has all")
            b.promoted()
        promoted = b.files.load()
        assert promoted is not None
        fill(a.life, 4 * SEGMENT_SIZE)
        a.life.store.pins.release("replica b")
        a.life._expire()
        assert a.life.store.segments.minimum > promoted.epochs[-1].start
        role = a.side.role
    demote(tmp_path / "a", role)
    with closing(Shard(tmp_path / "b", role=promoted, expires=False)) as new:
        fill(new.life, 6 * SEGMENT_SIZE)
        with closing(Follower(tmp_path / "a", new.address)) as follower:
            until(new.has_all, f"the old primary has all: {follower.error}")
            follower.promoted()
        with closing(Primary(tmp_path / "a", Random(0)).store) as again:
            begin, end = again.segments.minimum, new.life.store.messages.appended_up_to
            assert log_bytes(again, begin, end) == log_bytes(new.life.store, begin, end)
            assert again.messages.appended_up_to == end


def test_an_order_to_seed_that_comes_while_the_copy_connects_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Shard(tmp_path / "a")) as a:
        a.live(30)
        with closing(Follower(tmp_path / "b", a.address)) as b:
            until(a.has_all, "b has all")
        until(lambda: not a.has_all(), "b is away")
        a.live(30)
        orders = ["seed"]

        def slow(address: Address, tls: ReplicaTls | None) -> Connection:
            if orders:
                b.files.ask(orders.pop())
            return connect(address, tls)

        monkeypatch.setattr(replica_module, "connect", slow)
        with closing(Follower(tmp_path / "b", a.address)) as b:
            until(a.has_all, f"b has all: {b.error}")
        assert not b.files.is_asked("seed")


def test_the_first_primary_of_empty_copies_is_the_one_with_the_first_name(tmp_path: Path) -> None:
    with closing(Copies(tmp_path, "abc", has_first=False)) as copies:
        copies["c"].launch()
        copies["a"].launch()
        until(lambda: "no primary" in copies.says("a"), "a looks for a primary")
        assert copies["a"].get("/replica")[0] == 503
        assert copies.files("a").load() is None, "b has not said yet that it is empty"
        copies["b"].launch()
        assert copies["a"].ready_or_ended() is None
        until(lambda: all("follows a" in copies.says(name) for name in "bc"), "b and c follow")
        assert json.loads(copies["a"].get("/replica")[1])["role"] == "primary"


def test_no_empty_copy_becomes_the_primary_while_another_one_has_anything(tmp_path: Path) -> None:
    """The disk of the primary was replaced, and its machine came back before the copy was promoted."""
    with closing(Copies(tmp_path)) as copies:
        copies["a"].launch()
        assert copies["a"].ready_or_ended() is None
        copies.start("b")
        copies.wait_for_all("a")
        copies["a"].kill()
        rmtree(tmp_path / "a")
        copies["a"].launch()
        until(lambda: "b is not the primary" in copies.says("a"), "a has asked b")
        found = json.loads(copies["b"].get("/replica")[1])
        assert (found["role"], found["connected"], found["seeding"]) == ("copy", False, False)
        assert copies.files("a").load() is None
        copies.promote("b")
        until(lambda: copies["a"].get("/replica")[0] == 200, "a has been seeded by b")


@pytest.mark.parametrize("answers_as", ["a", "c"])
def test_only_the_named_copy_can_say_that_it_is_empty(tmp_path: Path, answers_as: str) -> None:
    """Peers whose addresses lead to the same machine, or to the copy itself, are a mistake."""
    with (
        closing(answering(Role(), lineage="", replica=answers_as)) as port,
        closing(Follower(tmp_path / "a", Address.parse(port.address), name="a", other="b")) as a,
    ):
        until(lambda: len(a.said) > 2, "a has asked")
        assert a.files.load() is None
