"""The tables of topics and groups, over both engines."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.kv import KeyRange, KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.errors import AlreadyExists, GroupNotFound, Invalid, StoreDamaged, TopicNotFound
from quarry_mq.store.metadata import (
    QUEUES_MAX,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    GroupTable,
    IllegalGroupName,
    IllegalTopicName,
    Permission,
    Topic,
    TopicTable,
    TopicType,
)
from quarry_mq.store.metadata.groups import decode_group, encode_group
from quarry_mq.store.metadata.rows import PAGE_ROWS
from quarry_mq.store.metadata.topics import TOPICS_FAMILY, decode_topic, encode_topic
from quarry_mq.store.state.identity import FAMILIES, open_state_engine

ORDERS = Topic("Orders", TopicType.FIFO, 8, 8, attributes={"lite.topic.expiration": "30"})
BILLING = Group("billing", fifo=True, max_attempts=3, backoff=ExponentialBackoff(1000, 60_000, 1.5))
ALL = KeyRange(b"", None)


def family_rows(engine: KeyValueEngine) -> dict[str, list[tuple[bytes, bytes]]]:
    return {name: engine.family(name).scan(ALL) for name in FAMILIES}


class CountingEngine:
    """Counts the engine writes and rows that a metadata change costs."""

    def __init__(self, engine: KeyValueEngine) -> None:
        self._engine = engine
        self.writes: list[tuple[int, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def write(self, batch: Any, *, sync: bool = False) -> None:
        self.writes.append((len(batch), sync))
        self._engine.write(batch, sync=sync)


# -- topics


def test_a_topic_lives_from_create_to_delete(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    assert topics.get("Orders") is None
    topics.create(ORDERS)
    assert topics.get("Orders") == ORDERS
    grown = Topic("Orders", TopicType.FIFO, 16, 12, Permission.READ)
    topics.update(grown)
    assert topics.get("Orders") == grown
    topics.delete("Orders")
    assert topics.get("Orders") is None
    assert list(topics.list()) == []


def test_another_table_sees_what_was_written(engine: KeyValueEngine) -> None:
    TopicTable(engine).create(ORDERS)
    assert TopicTable(engine).get("Orders") == ORDERS


def test_a_name_is_taken_once(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    topics.create(ORDERS)
    other = Topic("Orders", TopicType.NORMAL, 1, 1)
    with pytest.raises(AlreadyExists, match="Orders"):
        topics.create(other)
    assert topics.get("Orders") == ORDERS


def test_what_does_not_exist_is_neither_updated_nor_deleted(engine: KeyValueEngine) -> None:
    topics, groups = TopicTable(engine), GroupTable(engine)
    with pytest.raises(TopicNotFound, match="Orders"):
        topics.update(ORDERS)
    with pytest.raises(TopicNotFound, match="Orders"):
        topics.delete("Orders")
    with pytest.raises(GroupNotFound, match="billing"):
        groups.update(BILLING)
    with pytest.raises(GroupNotFound, match="billing"):
        groups.delete("billing")
    assert all(rows == [] for rows in family_rows(engine).values())


@pytest.mark.parametrize("name", ["Orders", "", "тема", "\ud800", "%LMQ%dev1", "TBW102"])
def test_a_read_never_creates_anything(engine: KeyValueEngine, name: str) -> None:
    """rmq#9792: a query made a deleted topic again."""
    topics, groups = TopicTable(engine), GroupTable(engine)
    topics.create(ORDERS)
    topics.delete("Orders")
    assert topics.get(name) is None
    assert groups.get(name) is None
    assert list(topics.list(name if name != "\ud800" else "x")) == []
    assert all(rows == [] for rows in family_rows(engine).values())


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (Topic("Orders", TopicType.NORMAL, 0, 1), "read_queues is 0; 1 to"),
        (Topic("Orders", TopicType.NORMAL, 1, -1), "write_queues is -1; 1 to"),
        (Topic("Orders", TopicType.NORMAL, QUEUES_MAX + 1, 1), f"read_queues is {QUEUES_MAX + 1}"),
        (Topic("Orders", TopicType.NORMAL, 1, 1, attributes={"": "x"}), "attributes: a key is empty"),
        (Topic("Orders", TopicType.NORMAL, 1, 1, attributes={"a": "x" * 4096}), "attributes: 4097 characters"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_field(engine: KeyValueEngine, topic: Topic, reason: str) -> None:
    topics = TopicTable(engine)
    with pytest.raises(Invalid, match=reason):
        topics.create(topic)
    topics.create(ORDERS)
    with pytest.raises(Invalid, match=reason):
        topics.update(topic)
    assert topics.get("Orders") == ORDERS


def test_names_only_the_broker_may_use(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    for name in ("SCHEDULE_TOPIC_XXXX", "%RETRY%" + "g" * 120 + "_" + "t" * 127):
        topic = Topic(name, TopicType.MIXED, 1, 1)
        with pytest.raises(IllegalTopicName):
            topics.create(topic)
        topics.create(topic, internal=True)
        topics.update(topic)
        assert topics.get(name) == topic
    with pytest.raises(IllegalTopicName, match="light queues"):
        topics.create(Topic("%LMQ%dev1", TopicType.LITE, 1, 1), internal=True)


def test_topics_are_listed_in_name_order_and_by_prefix(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    names = [f"{kind}-{number}" for kind in ("b", "a", "ab") for number in range(3)]
    topics.add_missing(Topic(name, TopicType.NORMAL, 1, 1) for name in names)
    assert [topic.name for topic in topics.list()] == sorted(names)
    assert [topic.name for topic in topics.list("a")] == sorted(name for name in names if name[0] == "a")
    assert [topic.name for topic in topics.list("a-1")] == ["a-1"]
    assert list(topics.list("c")) == []


@pytest.mark.parametrize("count", [PAGE_ROWS - 1, PAGE_ROWS, PAGE_ROWS + 1, 2 * PAGE_ROWS])
def test_a_listing_is_whole_at_page_borders(count: int) -> None:
    topics = TopicTable(MemoryEngine(FAMILIES, write_ahead_log=True))
    names = [f"t{number:05d}" for number in range(count)]
    assert topics.add_missing(Topic(name, TopicType.NORMAL, 1, 1) for name in names) == count
    assert [topic.name for topic in topics.list("t")] == names


def test_a_listing_is_lazy_and_lives_beside_changes(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    topics.add_missing(Topic(f"t{number:05d}", TopicType.NORMAL, 1, 1) for number in range(PAGE_ROWS + 10))
    listing = topics.list()
    first = [topic.name for topic in itertools.islice(listing, PAGE_ROWS)]
    topics.delete(f"t{PAGE_ROWS:05d}")
    assert first[-1] == f"t{PAGE_ROWS - 1:05d}"
    assert next(listing).name == f"t{PAGE_ROWS + 1:05d}"


def test_a_change_writes_one_row_durably_however_many_there_are(engine: KeyValueEngine) -> None:
    """rmq#7064: RocketMQ writes all topics for a change of one; rmq#9206: changes that bypassed the log were lost."""
    TopicTable(engine).add_missing(Topic(f"t{number}", TopicType.NORMAL, 1, 1) for number in range(2_000))
    counting = CountingEngine(engine)
    topics = TopicTable(counting)
    topics.create(ORDERS)
    topics.update(ORDERS)
    topics.delete("Orders")
    assert counting.writes == [(1, True)] * 3


def test_an_import_comes_in_bounded_batches_and_leaves_what_is_there(engine: KeyValueEngine) -> None:
    counting = CountingEngine(engine)
    topics = TopicTable(counting)
    topics.create(ORDERS)
    counting.writes.clear()
    incoming = [Topic(f"t{number}", TopicType.NORMAL, 1, 1) for number in range(2_500)]
    incoming.append(Topic("Orders", TopicType.NORMAL, 1, 1))
    incoming.append(incoming[-2])
    assert topics.add_missing(incoming) == 2_500
    assert [size for size, _ in counting.writes] == [1000, 1000, 500]
    assert counting.writes[-1][1], "the last batch makes all of them durable"
    assert topics.get("Orders") == ORDERS
    assert topics.add_missing(incoming) == 0


def test_the_cache_is_bounded_and_never_stale(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine, cached_max=2)
    for number in range(5):
        topics.create(Topic(f"t{number}", TopicType.NORMAL, 1, 1))
    assert len(topics._rows._cached) == 2
    for number in range(5):
        assert topics.get(f"t{number}") == Topic(f"t{number}", TopicType.NORMAL, 1, 1)
    topics.update(Topic("t4", TopicType.FIFO, 2, 2))
    topics.get("t0")
    topics.get("t1")
    assert list(topics._rows._cached) == ["t0", "t1"], "the least recently used row went"
    assert topics.get("t4") == Topic("t4", TopicType.FIFO, 2, 2)
    topics.delete("t4")
    assert topics.get("t4") is None


def warmed(topics: TopicTable) -> int:
    """How many pages it took."""
    pages, after = 0, topics.warm("")
    while after is not None:
        pages, after = pages + 1, topics.warm(after)
    return pages


@pytest.mark.parametrize("topics_max", [10, 700, 2_000])
def test_topics_can_be_at_hand_before_they_are_asked_for(engine: KeyValueEngine, topics_max: int) -> None:
    names = [f"t{number:04d}" for number in range(1_000)]
    TopicTable(engine).add_missing(Topic(name, TopicType.NORMAL, 1, 1) for name in names)
    topics = TopicTable(engine, cached_max=topics_max)
    topics.get("t0900")
    topics.get("t0005")
    kept = min(topics_max, len(names))
    assert warmed(topics) >= kept // 256
    cached = topics._rows._cached
    assert len(cached) == kept
    assert list(cached)[-2:] == ["t0900", "t0005"], "those in use go last"
    assert set(cached) >= set(names[: kept - 1])
    assert all(topics.get(name) == Topic(name, TopicType.NORMAL, 1, 1) for name in names)


def test_what_changes_meanwhile_is_not_taken_back(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    topics.add_missing(Topic(f"t{number:04d}", TopicType.NORMAL, 1, 1) for number in range(600))
    after = topics.warm("")
    topics.update(Topic("t0001", TopicType.FIFO, 2, 2))
    topics.update(Topic("t0599", TopicType.FIFO, 2, 2))
    topics.delete("t0002")
    topics.delete("t0598")
    while after is not None:
        after = topics.warm(after)
    assert warmed(topics) > 0
    for name in ("t0001", "t0599"):
        assert topics.get(name) == Topic(name, TopicType.FIFO, 2, 2)
    for name in ("t0002", "t0598"):
        assert topics.get(name) is None


def test_a_row_that_cannot_be_read_is_left_to_who_asks_for_it(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    topics.add_missing(Topic(f"t{number}", TopicType.NORMAL, 1, 1) for number in range(3))
    batch = engine.batch()
    batch.put(engine.family(TOPICS_FAMILY), b"t1", b"no row")
    engine.write(batch)
    assert warmed(topics) == 1
    assert list(topics._rows._cached) == ["t2", "t0"]
    with pytest.raises(StoreDamaged, match="t1"):
        topics.get("t1")


def test_a_cached_row_cannot_be_changed_from_outside(engine: KeyValueEngine) -> None:
    attributes = {"a": "1"}
    topics = TopicTable(engine)
    topics.create(Topic("Orders", TopicType.NORMAL, 1, 1, attributes=attributes))
    attributes["a"] = "2"
    kept = topics.get("Orders")
    assert kept is not None
    assert kept.attributes == {"a": "1"}
    with pytest.raises(TypeError):
        kept.attributes["a"] = "3"  # type: ignore[index]


def test_of_many_creators_of_one_name_one_succeeds(engine: KeyValueEngine) -> None:
    topics = TopicTable(engine)
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def create(queues: int) -> None:
        barrier.wait()
        try:
            topics.create(Topic("Orders", TopicType.NORMAL, queues, queues))
            outcomes.append(f"created {queues}")
        except AlreadyExists:
            outcomes.append("exists")

    threads = [threading.Thread(target=create, args=(number + 1,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = [outcome for outcome in outcomes if outcome != "exists"]
    kept = topics.get("Orders")
    assert kept is not None
    assert made == [f"created {kept.read_queues}"]


def test_rows_survive_a_restart(tmp_path: Path) -> None:
    engine = open_state_engine(tmp_path / "quarry", create=True)
    TopicTable(engine).create(ORDERS)
    GroupTable(engine).create(BILLING)
    engine.close()
    engine = open_state_engine(tmp_path / "quarry", create=False)
    assert TopicTable(engine).get("Orders") == ORDERS
    assert list(GroupTable(engine).list()) == [BILLING]
    engine.close()


def test_system_topics_are_marked() -> None:
    assert Topic("rmq_sys_wheel_timer", TopicType.MIXED, 1, 1).is_system
    assert Topic("DefaultCluster", TopicType.MIXED, 1, 1, attributes={"quarry.system": "true"}).is_system
    assert not ORDERS.is_system


# -- groups


def test_a_group_lives_from_create_to_delete(engine: KeyValueEngine) -> None:
    groups = GroupTable(engine)
    groups.create(BILLING)
    groups.create(Group("audit"))
    with pytest.raises(AlreadyExists, match="billing"):
        groups.create(BILLING)
    changed = Group("billing", enabled=False, backoff=CustomizedBackoff((1000, 5000)), attributes={"a": "b"})
    groups.update(changed)
    assert groups.get("billing") == changed
    assert [group.name for group in groups.list()] == ["audit", "billing"]
    assert [group.name for group in groups.list("b")] == ["billing"]
    groups.delete("billing")
    assert groups.get("billing") is None


def test_defaults_are_those_clients_expect() -> None:
    group = Group("billing")
    assert (group.fifo, group.max_attempts, group.enabled) == (False, 17, True)
    assert isinstance(group.backoff, CustomizedBackoff)
    steps_s = [step // 1000 for step in group.backoff.next_ms]
    assert steps_s == [1, 5, 10, 30, *(60 * m for m in range(1, 11)), 1200, 1800, 3600, 7200]
    assert ExponentialBackoff() == ExponentialBackoff(5_000, 7_200_000, 2.0)


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (Group("billing", max_attempts=0), "max_attempts is 0; 1 to"),
        (Group("billing", max_attempts=2**31), "max_attempts"),
        (Group("billing", backoff=CustomizedBackoff(())), "backoff: 0 delays"),
        (Group("billing", backoff=CustomizedBackoff((1,) * 101)), "backoff: 101 delays"),
        (Group("billing", backoff=CustomizedBackoff((1000, 0))), "backoff: every delay"),
        (Group("billing", backoff=ExponentialBackoff(0, 1000, 2)), "backoff: 0 < initial_ms"),
        (Group("billing", backoff=ExponentialBackoff(2000, 1000, 2)), "backoff: 0 < initial_ms"),
        (Group("billing", backoff=ExponentialBackoff(1000, 2000, 0.5)), "multiplier is 0.5"),
        (Group("billing", backoff=ExponentialBackoff(1000, 2000, float("nan"))), "multiplier is nan"),
        (Group("billing", backoff=ExponentialBackoff(1000, 2000, float("inf"))), "multiplier is inf"),
        (Group("billing", attributes={"": ""}), "attributes: a key is empty"),
    ],
)
def test_group_settings_that_do_not_fit_are_refused_by_field(engine: KeyValueEngine, group: Group, reason: str) -> None:
    groups = GroupTable(engine)
    with pytest.raises(Invalid, match=reason):
        groups.create(group)
    assert groups.get("billing") is None
    groups.create(BILLING)
    with pytest.raises(Invalid, match=reason):
        groups.update(group)
    assert groups.get("billing") == BILLING


def test_illegal_group_names_are_refused(engine: KeyValueEngine) -> None:
    with pytest.raises(IllegalGroupName):
        GroupTable(engine).create(Group("CID_RMQ_SYS_TRANS"))


# -- rows on disk


def test_golden_topic_row(engine: KeyValueEngine) -> None:
    TopicTable(engine).create(ORDERS)
    assert engine.family("topics").scan(ALL) == [
        (
            b"Orders",
            (
                b'{"attributes":{"lite.topic.expiration":"30"},"format":1,"permission":6,'
                b'"readQueues":8,"type":"fifo","writeQueues":8}'
            ),
        )
    ]


def test_golden_group_rows(engine: KeyValueEngine) -> None:
    groups = GroupTable(engine)
    groups.create(BILLING)
    groups.create(Group("audit", backoff=CustomizedBackoff((1000, 5000)), attributes={"näme": "wert"}))
    assert engine.family("groups").scan(ALL) == [
        (
            b"audit",
            (
                b'{"attributes":{"n\\u00e4me":"wert"},"enabled":true,"fifo":false,"format":1,"maxAttempts":17,'
                b'"nextMs":[1000,5000]}'
            ),
        ),
        (
            b"billing",
            (
                b'{"attributes":{},"enabled":true,"fifo":true,"format":1,"initialMs":1000,"maxAttempts":3,'
                b'"maxMs":60000,"multiplier":1.5}'
            ),
        ),
    ]


@pytest.mark.parametrize("kind", TopicType)
@pytest.mark.parametrize("permission", [Permission(0), Permission.READ, Permission.WRITE])
def test_every_topic_comes_back_from_its_row(kind: TopicType, permission: Permission) -> None:
    topic = Topic("t", kind, 3, 4, permission, {"a": "ü", "b": ""})
    assert decode_topic("t", encode_topic(topic)) == topic


def test_a_row_of_a_newer_format_is_refused() -> None:
    row = encode_topic(ORDERS).replace(b'"format":1', b'"format":2')
    with pytest.raises(StoreDamaged, match="format 2; this version reads 1"):
        decode_topic("Orders", row)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ((b"{", b"["), "not JSON"),
        ((b'"readQueues":8', b'"readQueues":"8"'), "readQueues is '8', not an integer"),
        ((b'"readQueues":8', b'"readQueues":true'), "readQueues is True, not an integer"),
        ((b'"type":"fifo"', b'"type":"lifo"'), "lifo"),
        ((b'"type":"fifo"', b'"type":7'), "type is 7, not a text"),
        ((b'"permission":6', b'"permission":99'), "99"),
        ((b'{"lite.topic.expiration":"30"}', b"[]"), "attributes is \\[\\], not a map"),
    ],
)
def test_a_damaged_topic_row_names_itself_and_the_field(
    engine: KeyValueEngine, damage: tuple[bytes, bytes], reason: str
) -> None:
    row = encode_topic(ORDERS)
    assert damage[0] in row
    batch = engine.batch()
    batch.put(engine.family("topics"), b"Orders", row.replace(damage[0], damage[1], 1))
    engine.write(batch)
    with pytest.raises(StoreDamaged, match=f"table topics, row 'Orders': .*{reason}"):
        TopicTable(engine).get("Orders")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ((b'"fifo":true', b'"fifo":1'), "fifo is 1, not true or false"),
        ((b'"maxAttempts":3', b'"maxAttempts":null'), "maxAttempts"),
        ((b'"multiplier":1.5', b'"multiplier":"x"'), "multiplier is 'x', not a number"),
        ((b'"initialMs":1000', b'"nextMs":7'), "nextMs is 7, not a list"),
        ((b'"initialMs":1000', b'"nextMs":[1.5]'), "not a list of integers"),
        ((b'"initialMs"', b'"x"'), "initialMs is None"),
    ],
)
def test_a_damaged_group_row_names_itself_and_the_field(damage: tuple[bytes, bytes], reason: str) -> None:
    row = encode_group(BILLING)
    assert damage[0] in row
    with pytest.raises(StoreDamaged, match=f"table groups, row 'billing': .*{reason}"):
        decode_group("billing", row.replace(damage[0], damage[1], 1))
    with pytest.raises(StoreDamaged, match="not a JSON object"):
        decode_group("billing", b"[1]")
