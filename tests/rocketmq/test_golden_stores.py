"""The metadata that RocketMQ 5.5.0 left in the golden stores, row by row, and its import."""

from __future__ import annotations

from pathlib import Path

import pytest

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import FoundStore, StoreKind, inspect_store
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import (
    ConsumerOffsetTable,
    CustomizedBackoff,
    Group,
    GroupTable,
    Permission,
    Topic,
    TopicTable,
    TopicType,
)
from quarry_mq.store.rocketmq import ImportReport, import_metadata, read_metadata
from quarry_mq.store.state.identity import FAMILIES
from tests.conftest import GoldenStore
from tests.golden import NAMES

ALL = KeyRange(b"", None)
NONE = Permission(0)
SYSTEM = {"quarry.system": "true"}

NORMAL_TOPICS = {
    "acme-orders": 4,
    "acme-payments": 4,
    "acme_audit-log": 4,
    "acme-tx": 4,
    "acme-long-" + "y" * 114: 4,
    "acme-long-" + "y" * 115: 4,
    "acme-long-" + "y" * 116: 4,
    "%RETRY%acme-cg": 1,
}
SYSTEM_TOPICS = {
    "BenchmarkTest": 1024,
    "OFFSET_MOVED_EVENT": 1,
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
    "SCHEDULE_TOPIC_XXXX": 18,
    "SELF_TEST_TOPIC": 1,
    "TBW102": 8,
    "rmq_sys_REVIVE_LOG_DefaultCluster": 8,
    "rmq_sys_wheel_timer": 1,
}
BROKER_NAMED_TOPICS = {"DefaultCluster": 16, "DefaultCluster_REPLY_TOPIC": 1, "broker-a": 1}

GROUPS = (
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_OWNER",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_PULL",
    "CID_RMQ_SYS_TRANS",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "TOOLS_CONSUMER",
    "acme-cg",
)

# half messages, operations on them, then the four queues of acme-orders
OFFSETS = {
    "file-clean": (16, 2, (354, 336, 382, 368)),
    "rocks-clean": (16, 2, (375, 362, 387, 363)),
    "double-clean": (32, 5, (504, 475, 515, 504)),
    "file-kill": (16, 2, (357, 361, 369, 380)),
}


def expected_topics(name: str) -> dict[str, Topic]:
    topics = {
        topic: Topic(topic, TopicType.MIXED, queues, queues)
        for topic, queues in (NORMAL_TOPICS | SYSTEM_TOPICS).items()
        if (name, topic) != ("rocks-clean", "rmq_sys_wheel_timer")
    }
    for topic, queues in BROKER_NAMED_TOPICS.items():
        topics[topic] = Topic(topic, TopicType.MIXED, queues, queues, attributes=SYSTEM)
    member = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    topics[member] = Topic(member, TopicType.MIXED, 1, 1, NONE)
    return topics


def expected_offsets(name: str) -> dict[tuple[str, QueueId], QueueOffset]:
    half, operations, orders = OFFSETS[name]
    offsets = {
        ("CID_RMQ_SYS_TRANS", QueueId("RMQ_SYS_TRANS_HALF_TOPIC", 0)): half,
        ("CID_RMQ_SYS_TRANS", QueueId("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)): operations,
    }
    offsets |= {("acme-cg", QueueId("acme-orders", number)): offset for number, offset in enumerate(orders)}
    if name == "double-clean":
        offsets["acme-cg", QueueId("%RETRY%acme-cg", 0)] = 51
    return {key: QueueOffset(offset) for key, offset in offsets.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_topic_group_and_offset_is_read(golden_store: GoldenStore, name: str) -> None:
    """The RocksDB folders are read without a trace: the fixture compares every file at the end."""
    found = read_metadata(PosixDisk(), golden_store(name) / "store")
    assert {topic.name: topic for topic in found.topics} == expected_topics(name)
    assert len(found.topics) == len(expected_topics(name))
    assert sorted(group.name for group in found.groups) == list(GROUPS)
    assert all(group == Group(group.name, backoff=CustomizedBackoff()) for group in found.groups)
    assert {(each.group, each.queue): each.offset for each in found.offsets} == expected_offsets(name)
    assert found.light_offsets == []
    assert found.warnings == []


@pytest.mark.parametrize("name", NAMES)
def test_what_a_listing_would_show_to_users(golden_store: GoldenStore, name: str) -> None:
    found = read_metadata(PosixDisk(), golden_store(name) / "store")
    assert {topic.name for topic in found.topics if not topic.is_system} == set(NORMAL_TOPICS)


@pytest.mark.parametrize("name", NAMES)
def test_the_import_is_whole_and_repeatable(golden_store: GoldenStore, name: str) -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    topics, groups, offsets = TopicTable(engine), GroupTable(engine), ConsumerOffsetTable(engine)
    found = read_metadata(PosixDisk(), golden_store(name) / "store")
    report = import_metadata(found, topics, groups, offsets, engine)
    assert report == ImportReport(len(expected_topics(name)), len(GROUPS), len(expected_offsets(name)))
    assert {topic.name: topic for topic in topics.list()} == expected_topics(name)
    assert [group.name for group in groups.list()] == list(GROUPS)
    for (group, queue), offset in expected_offsets(name).items():
        assert offsets.get(group, queue) == offset

    rows = {family: engine.family(family).scan(ALL) for family in FAMILIES}
    assert import_metadata(found, topics, groups, offsets, engine) == ImportReport(0, 0, 0)
    assert {family: engine.family(family).scan(ALL) for family in FAMILIES} == rows


@pytest.mark.parametrize(
    ("name", "kind", "database", "file_queues", "abort"),
    [
        ("file-clean", StoreKind.ROCKETMQ_FILE, None, True, False),
        ("rocks-clean", StoreKind.ROCKETMQ_ROCKSDB, "consumequeue", False, False),
        ("double-clean", StoreKind.ROCKETMQ_DOUBLE_WRITE, "consumequeue", True, False),
        ("file-kill", StoreKind.ROCKETMQ_FILE, None, True, True),
    ],
)
def test_what_each_store_is(
    golden_store: GoldenStore, name: str, kind: StoreKind, database: str | None, file_queues: bool, abort: bool
) -> None:
    root: Path = golden_store(name) / "store"
    assert inspect_store(PosixDisk(), root) == FoundStore(
        kind=kind,
        layout=kind,
        rocksdb_directory=root / (database or "consumequeue_rocksdb"),
        has_rocksdb=database is not None,
        has_file_queues=file_queues,
        has_abort=abort,
    )
