"""Members one release apart: what an older one has said and stored is understood, and what a newer one says is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.cluster.service import from_row, to_horizons, to_position, to_row
from quarry_mq.server.cluster.replication import Page
from quarry_mq.store.metadata.topics import encode_topic
from quarry_mq.store.replication import Applied, RowRefused, SharedKind, SharedRow
from tests.cluster.golden import GOLDEN, NAME, PRESENT, example, loaded, response_of
from tests.cluster.nodes import Network, Node
from tests.replication.members import Member, member, rows_of

VERSIONS = sorted(GOLDEN.iterdir())
each_version = pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)


def test_the_present_version_has_its_bytes() -> None:
    assert (GOLDEN / PRESENT) in VERSIONS


def page_of(message: pb.ExchangeResponse) -> Page:
    rows = [to_row(each) for each in message.rows]
    return Page(message.name, rows, message.since, to_position(message.until), message.more, to_horizons(message))


def take(store: Member, page: Page) -> Applied:
    return store.replicated.apply(
        page.rows, peer=page.name, until=page.until, since=page.since, more=page.more, told=page.told
    )


def check_example(store: Member) -> None:
    orders, anna = store.tables.topics.get("orders"), store.tables.users.get_sealed("anna")
    assert orders is not None
    assert orders.read_queues == 8
    assert store.tables.topics.get("old") is None
    assert anna is not None
    assert anna.certificates == ("CN=anna",)
    assert len(store.tables.policies.get("anna").rules) == 1
    billing = store.tables.groups.get("billing")
    assert billing is not None
    assert billing.max_attempts == 7
    assert store.replicated.get(SharedKind.MEMBER, NAME) is not None


@each_version
def test_what_a_member_of_that_version_answers_is_taken(folder: Path) -> None:
    message = pb.ExchangeResponse.FromString((folder / "response.bin").read_bytes())
    new = member("new")
    take(new, page_of(message))
    check_example(new)
    assert new.replicated.position(NAME) == to_position(message.until)
    # told on as it came
    assert {from_row(row).SerializeToString() for row in new.replicated.changes(0).rows} == {
        each.SerializeToString() for each in message.rows
    }


@each_version
def test_what_a_member_of_that_version_asks_is_answered(folder: Path) -> None:
    asked = pb.ExchangeRequest.FromString((folder / "request.bin").read_bytes())
    node = Node(Network(), "m0", set())
    node.store.topic("orders")
    page = node.exchange.asked(asked.name, asked.address, to_position(asked.since), asked.rows_max)
    assert [row.name for row in page.rows] == ["orders"]
    nudged = pb.NudgeRequest.FromString((folder / "nudge.bin").read_bytes())
    node.exchange.nudged(nudged.name, nudged.address)
    assert node.exchange._told.keys() == {asked.address}


@each_version
def test_a_store_of_that_version_goes_on(folder: Path) -> None:
    engine = loaded(folder)
    store = Member(NAME, lambda: engine)
    check_example(store)
    store.check_whole()
    assert len(store.replicated.changes(0).rows) == 6
    store.topic("orders", 9)
    other = member("other")
    other.pull(store)
    assert other.content() == store.content()


def test_what_is_said_today_is_what_was_frozen() -> None:
    """Another set of fields needs a folder of its own, and a look at docs/upgrading.md."""
    frozen = pb.ExchangeResponse.FromString((GOLDEN / PRESENT / "response.bin").read_bytes())
    today = response_of(example())
    shapes = [
        {(row.kind, row.name, tuple(sorted(field.name for field, _ in row.ListFields()))) for row in message.rows}
        for message in (frozen, today)
    ]
    assert shapes[0] == shapes[1]
    assert [field.name for field, _ in frozen.ListFields()] == [field.name for field, _ in today.ListFields()]
    for old, new in zip(_documents(frozen), _documents(today), strict=True):
        assert old == new


def _documents(message: pb.ExchangeResponse) -> list[tuple[str, list[str]]]:
    """The fields of each row's value."""
    return sorted((row.kind, sorted(json.loads(row.value))) for row in message.rows if row.HasField("value"))


def test_an_answer_without_what_came_later_is_taken() -> None:
    """Horizons, for one."""
    message = pb.ExchangeResponse.FromString((GOLDEN / PRESENT / "response.bin").read_bytes())
    message.ClearField("known")
    message.ClearField("forgotten")
    new = member("new")
    take(new, page_of(message))
    check_example(new)
    assert new.replicated.horizons.known[NAME] == message.until.sequence


def newer(*rows: SharedRow) -> pb.ExchangeResponse:
    """An answer of a newer member, with rows that are as no row here is, and a field that nobody knows here."""
    message = response_of(example())
    for row in rows:
        message.rows.add().CopyFrom(from_row(row))
    field_99 = b"\x9a\x06\x05hello"
    return pb.ExchangeResponse.FromString(message.SerializeToString() + field_99)


def changed(row: SharedRow, **fields: object) -> SharedRow:
    """The row as a newer version might write it."""
    assert row.value is not None
    value = json.dumps(json.loads(row.value) | fields).encode()
    version = type(row.version)(row.version.time_ms + 1000, 0, row.version.member)
    return SharedRow(row.kind, row.name, version, row.version, value)


def unread_rows() -> list[SharedRow]:
    rows = rows_of(example())
    orders, anna = rows[SharedKind.TOPIC, "orders"], rows[SharedKind.POLICY, "anna"]
    new_topic = changed(SharedRow(orders.kind, "streams", orders.version, None, orders.value), type="STREAM")
    zone = SharedRow("zone", "east", orders.version, None, b"\x00no document")
    rule = {"resource": "galaxy:x", "actions": ["WARP"], "decision": "allow"}
    return [zone, new_topic, changed(orders, format=2), changed(anna, rules=[rule])]


def test_what_a_newer_member_says_is_kept_told_on_and_changes_nothing_here() -> None:
    unread = unread_rows()
    store, third = member("old"), member("third")
    store.pull(example())
    applied = take(store, page_of(newer(*unread)))
    assert set(applied.unread) == set(unread)
    check_example(store)
    assert store.tables.topics.get("streams") is None
    store.check_whole()
    store.topic("mine")
    for one, other in ((store, third), (third, store)):
        other.pull(one)
    there = rows_of(third)
    assert all(there[row.kind, row.name] == row for row in unread)
    store.restart()
    assert all(rows_of(store)[row.kind, row.name] == row for row in unread)


def test_what_was_kept_unread_is_read_after_the_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    from quarry_mq.store.replication import replicated_rows as shared_rows
    from quarry_mq.store.replication import row_checks as checking

    source = example()
    source.clock.advance(10)
    source.topic("streams", 3)
    row = rows_of(source)[SharedKind.TOPIC, "streams"]
    store = member("old")
    with monkeypatch.context() as older:
        older.setattr(shared_rows, "is_unread", lambda each: each.name == "streams" or checking.is_unread(each))
        store.pull(source)
        assert store.tables.topics.get("streams") is None
        store.restart()
        assert store.tables.topics.get("streams") is None
    store.restart()
    streams = store.tables.topics.get("streams")
    assert streams is not None
    assert encode_topic(streams) == row.value
    assert rows_of(store)[SharedKind.TOPIC, "streams"] == row
    store.check_whole()


def test_a_change_here_and_a_deletion_there_end_what_was_kept_unread() -> None:
    store = member("old")
    take(store, page_of(newer(*unread_rows())))
    store.clock.advance(100)
    store.topic("orders", 5)
    store.topic("streams", 2)
    rows = rows_of(store)
    value = rows[SharedKind.TOPIC, "streams"].value
    assert value is not None
    assert json.loads(value)["type"] != "STREAM"
    zone = rows["zone", "east"]
    gone = SharedRow("zone", "east", type(zone.version)(zone.version.time_ms + 5, 0, bytes(8)), zone.version, None)
    store.replicated.apply([gone], peer="x", until=None)
    assert rows_of(store)["zone", "east"].value is None
    store.restart()
    store.check_whole()


def test_what_is_no_row_of_any_version_is_refused_still() -> None:
    zone = unread_rows()[0]
    for bad in (
        SharedRow("", "east", zone.version, None, b""),
        SharedRow("Zone/../x", "east", zone.version, None, b""),
        SharedRow("zone", "", zone.version, None, b""),
        SharedRow("zone", "east", zone.version, None, bytes(2**20 + 1)),
        SharedRow("topic", "bad", zone.version, None, b"{"),
    ):
        with pytest.raises(RowRefused):
            take(member("old"), page_of(newer(bad)))
