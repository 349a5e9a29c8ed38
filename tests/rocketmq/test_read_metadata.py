"""Reads RocketMQ's metadata: the copy that counts, damage, and the result of each row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import (
    ConsumerOffsetTable,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    GroupTable,
    Permission,
    Topic,
    TopicTable,
    TopicType,
)
from quarry_mq.store.rocketmq import ConsumerOffset, RocketmqMetadata, import_metadata, read_metadata
from quarry_mq.store.rocketmq.model import WARNINGS_MAX
from quarry_mq.store.rocketmq.sources import decode_v2_offset_key
from quarry_mq.store.state.identity import FAMILIES
from tests.rocketmq.conftest import Config, group_row, topic_row, v2_named_row, v2_offset_row, v2_version_row


def read(config: Config) -> RocketmqMetadata:
    return read_metadata(PosixDisk(), config.root)


def topic_names(found: RocketmqMetadata) -> list[str]:
    return sorted(topic.name for topic in found.topics)


def offsets(found: RocketmqMetadata) -> dict[tuple[str, str, int], int]:
    return {(each.group, each.queue.topic, each.queue.number): each.offset for each in found.offsets}


def test_a_store_without_metadata_has_none(tmp_path: Path) -> None:
    assert read_metadata(PosixDisk(), tmp_path) == RocketmqMetadata([], [], [], [], [])


# -- JSON files and their backups


@pytest.mark.parametrize("text", [None, b"", b"{", b"\x00" * 300, b"[]", b"null"])
def test_a_damaged_file_is_read_from_its_backup(config: Config, text: bytes | None) -> None:
    """rmq#9705, rmq#7729: after a power cut the file may be empty, cut or all zeros."""
    config.json("topics.json.bak", "topicConfigTable", {"Orders": topic_row("Orders")})
    if text is not None:
        config.write("topics.json", text)
    found = read(config)
    assert topic_names(found) == ["Orders"]
    assert any("topics.json.bak was read instead of topics.json" in warning for warning in found.warnings)
    assert any("topics.json is damaged" in warning for warning in found.warnings) == (text is not None)
    assert (config.path / "topics.json").exists() == (text is not None), "RocketMQ deletes it; we only read"


def test_the_file_counts_before_its_backup(config: Config) -> None:
    config.json("topics.json", "topicConfigTable", {"New": topic_row("New")}, counter=1)
    config.json("topics.json.bak", "topicConfigTable", {"Old": topic_row("Old")}, counter=9)
    found = read(config)
    assert topic_names(found) == ["New"]
    assert found.warnings == []


def test_file_and_backup_both_damaged_do_not_stop_the_rest(config: Config) -> None:
    """rmq#9705, rmq#9412: the broker did not start when a power cut had damaged both."""
    config.write("topics.json", b"")
    config.write("topics.json.bak", b"{")
    config.json("subscriptionGroup.json", "subscriptionGroupTable", {"billing": group_row("billing")})
    found = read(config)
    assert found.topics == []
    assert found.groups == [Group("billing")]
    assert len(found.warnings) == 2
    assert "topics.json is damaged" in found.warnings[0]
    assert "topics.json.bak is damaged" in found.warnings[1]


def test_tables_of_the_wrong_shape_are_reported(config: Config) -> None:
    config.json("topics.json", "topicConfigTable", [1, 2])
    found = read(config)
    assert found.topics == []
    assert ["topicConfigTable is not an object" in warning for warning in found.warnings] == [True]


def test_bare_integer_keys_of_a_file_by_hand(config: Config) -> None:
    config.write("consumerOffset.json", '{\n\t"offsetTable":{\n\t\t"Orders@billing":{0:12,1:9,2:30\n\t\t}\n\t}\n}')
    assert offsets(read(config)) == {
        ("billing", "Orders", 0): 12,
        ("billing", "Orders", 1): 9,
        ("billing", "Orders", 2): 30,
    }


# -- which copy


def test_the_rocksdb_of_config_v1_is_read(config: Config) -> None:
    config.v1("topics", {"Orders": topic_row("Orders")}, counter=3)
    config.v1("subscriptionGroups", {"billing": group_row("billing")}, forbidden={b"billing": b'{"Orders":1}'})
    config.v1("consumerOffsets", {"Orders@billing": {"offsetTable": {"0": 7, "2": 9}}})
    found = read(config)
    assert topic_names(found) == ["Orders"]
    assert found.groups == [Group("billing")]
    assert offsets(found) == {("billing", "Orders", 0): 7, ("billing", "Orders", 2): 9}
    assert ["denied some topics" in warning for warning in found.warnings] == [True]


def test_the_rocksdb_of_config_v2_is_read(config: Config) -> None:
    """rmq#8856: there is no way from v1 to v2 in RocketMQ, so both must be readable."""
    config.database(
        "rdb",
        {
            "default": {
                **v2_version_row(3, 5),
                **v2_named_row(3, "Orders", topic_row("Orders", queues=8)),
                **v2_version_row(4, 5),
                **v2_named_row(4, "billing", group_row("billing", consumeMessageOrderly=True)),
                **v2_version_row(1, 5),
                **v2_offset_row("billing", "Orders", 3, 2**40),
                **v2_offset_row("%LMQ%dev1", "%LMQ%dev1", 0, 7),
                # pull offsets, table 2, are no consumer offsets
                **{b"\x01\x00\x02" + key[3:]: value for key, value in v2_offset_row("p", "t", 0, 1).items()},
            }
        },
    )
    found = read(config)
    assert found.topics == [Topic("Orders", TopicType.MIXED, 8, 8)]
    assert found.groups == [Group("billing", fifo=True)]
    assert offsets(found) == {("billing", "Orders", 3): 2**40}
    assert found.light_offsets == [ConsumerOffset("%LMQ%dev1", QueueId("%LMQ%dev1", 0), QueueOffset(7))]
    assert found.warnings == []


@pytest.mark.parametrize(
    ("json_counter", "v1_counter", "expected"),
    [(3, 2, "Json"), (2, 3, "V1"), (3, None, "Json"), (0, None, "V1")],
)
def test_the_newer_of_json_and_rocksdb_counts(
    config: Config, json_counter: int, v1_counter: int | None, expected: str
) -> None:
    """RocketMQ imports the JSON only when its counter is higher than that of the database, which may have none."""
    config.json("topics.json", "topicConfigTable", {"Json": topic_row("Json")}, counter=json_counter)
    config.v1("topics", {"V1": topic_row("V1")}, counter=v1_counter)
    found = read(config)
    assert topic_names(found) == [expected]
    assert ["is an older copy of" in warning for warning in found.warnings] == [True]


def test_copies_of_one_version_are_the_same_and_rocksdb_is_read(config: Config) -> None:
    config.json("topics.json", "topicConfigTable", {"Json": topic_row("Json")}, counter=4)
    config.v1("topics", {"V1": topic_row("V1")}, counter=4)
    assert topic_names(read(config)) == ["V1"]


def test_an_empty_database_does_not_hide_the_file(config: Config) -> None:
    """rmq#8600: switching to RocksDB must not lose what the files hold."""
    config.json("topics.json", "topicConfigTable", {"Json": topic_row("Json")}, counter=0)
    config.v1("topics", {}, counter=9)
    found = read(config)
    assert topic_names(found) == ["Json"]
    assert found.warnings == []


def test_v2_counts_when_it_is_newer(config: Config) -> None:
    config.v1("topics", {"V1": topic_row("V1")}, counter=4)
    config.database("rdb", {"default": {**v2_version_row(3, 5), **v2_named_row(3, "V2", topic_row("V2"))}})
    assert topic_names(read(config)) == ["V2"]


def test_a_database_that_lost_its_current_file_is_reported(config: Config) -> None:
    config.v1("topics", {"V1": topic_row("V1")}, counter=4)
    (config.path / "topics" / "CURRENT").unlink()
    with pytest.raises(StoreDamaged, match=r"topics: .*CURRENT") as caught:
        read(config)
    assert caught.value.path == config.path / "topics"


def test_a_damaged_database_is_reported(config: Config) -> None:
    config.v1("topics", {f"t{number}": topic_row(f"t{number}") for number in range(50)}, counter=4)
    manifest = next((config.path / "topics").glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes()[:10])
    with pytest.raises(StoreDamaged, match=r"config/topics: RocketMQ's metadata cannot be read"):
        read(config)


def test_reading_leaves_no_trace(config: Config) -> None:
    config.v1("topics", {"V1": topic_row("V1")}, counter=4)
    before = {path: path.stat().st_mtime_ns for path in config.root.rglob("*")}
    read(config)
    assert {path: path.stat().st_mtime_ns for path in config.root.rglob("*")} == before


# -- offsets


def test_both_offset_files_count_and_the_newer_wins(config: Config) -> None:
    """rmq#8939: offsets of light queues come from their own table. The counter says nothing between the two."""
    config.json(
        "consumerOffset.json", "offsetTable", {"Orders@g": {"0": 5}, "Rest@g": {"0": 1}}, counter=9, timestamp=10
    )
    config.json(
        "lmqConsumerOffset.json",
        "offsetTable",
        {"Orders@g": {"0": 8}},
        counter=0,
        timestamp=20,
        lmqOffsetTable={"%LMQ%dev1@%LMQ%dev1": 7},
        pullOffsetTable={"Orders@g": {"0": 99}},
    )
    found = read(config)
    assert offsets(found) == {("g", "Orders", 0): 8, ("g", "Rest", 0): 1}
    assert found.light_offsets == [ConsumerOffset("%LMQ%dev1", QueueId("%LMQ%dev1", 0), QueueOffset(7))]
    assert ["only in the older" in warning for warning in found.warnings] == [True]


@pytest.mark.parametrize(
    ("key", "row"),
    [
        ("Orders", {"0": 1}),
        ("@g", {"0": 1}),
        ("Orders@", {"0": 1}),
        ("Orders@g@h", {"0": 1}),
        ("Orders@g", [1]),
        ("Orders@" + "g" * 121, {"0": 1}),
        ("Orders@g", {"-1": 1}),
        ("Orders@g", {"x": 1}),
        ("Orders@g", {"²": 1}),
        ("Orders@g", {"2147483648": 1}),
        ("Orders@g", {"0": -1}),
        ("Orders@g", {"0": 2**63}),
        ("Orders@g", {"0": "1"}),
        ("Orders@g", {"0": True}),
    ],
)
def test_offsets_that_make_no_sense_are_passed_over_by_name(config: Config, key: str, row: Any) -> None:
    config.json("consumerOffset.json", "offsetTable", {key: row, "Good@g": {"0": 3}})
    found = read(config)
    assert offsets(found) == {("g", "Good", 0): 3}
    assert len(found.warnings) == 1
    assert repr(key) in found.warnings[0]


def test_v2_offset_keys_that_are_cut_or_odd_are_passed_over(config: Config) -> None:
    [(key, value)] = v2_offset_row("billing", "Orders", 3, 7).items()
    for cut in range(4, len(key)):
        assert decode_v2_offset_key(key[4:cut]) is None
    assert decode_v2_offset_key(key[4:]) == ("billing", "Orders", 3)
    assert decode_v2_offset_key(key[4:] + b"\0") is None
    assert decode_v2_offset_key(b"\xff\xff" + key[6:]) is None
    config.database("rdb", {"default": {key: value, key + b"\0": value, key[:-1] + b"\4": b"short"}})
    found = read(config)
    assert offsets(found) == {("billing", "Orders", 3): 7}
    assert len(found.warnings) == 2


# -- rows


@pytest.mark.parametrize(
    ("row", "topic"),
    [
        (topic_row("t", attributes={"message.type": "FIFO"}), Topic("t", TopicType.FIFO, 4, 4)),
        (topic_row("t", attributes={"message.type": "UNSPECIFIED"}), Topic("t", TopicType.MIXED, 4, 4)),
        (topic_row("t", attributes={"message.type": "LITE"}), Topic("t", TopicType.LITE, 4, 4)),
        (topic_row("t", perm=2), Topic("t", TopicType.MIXED, 4, 4, Permission.WRITE)),
        (topic_row("t", perm=4), Topic("t", TopicType.MIXED, 4, 4, Permission.READ)),
        (topic_row("t", order=True), Topic("t", TopicType.MIXED, 4, 4, attributes={"order": "true"})),
        (topic_row("t", writeQueueNums=0), Topic("t", TopicType.MIXED, 4, 0)),
        (topic_row("t", queues=16384), Topic("t", TopicType.MIXED, 16384, 16384)),
        (topic_row("t", attributes={"a": "7"}), Topic("t", TopicType.MIXED, 4, 4, attributes={"a": "7"})),
        ({"perm": 6, "readQueueNums": 4, "writeQueueNums": 4}, Topic("t", TopicType.MIXED, 4, 4)),
    ],
)  # fmt: skip
def test_what_a_topic_row_comes_to(config: Config, row: dict[str, Any], topic: Topic) -> None:
    """A topic without `message.type` takes every message, as it did in RocketMQ."""
    config.json("topics.json", "topicConfigTable", {"t": row})
    found = read(config)
    assert found.topics == [topic]
    assert found.warnings == []


@pytest.mark.parametrize(
    ("attributes", "warning"),
    [
        ({"message.type": "ODD"}, "unknown message.type"),
        ({"queue.type": "BatchCQ"}, "queue.type=BatchCQ, which has no effect"),
        ({"cleanup.policy": "COMPACTION"}, "cleanup.policy=COMPACTION, which has no effect"),
    ],
)
def test_settings_without_a_counterpart_are_named(config: Config, attributes: dict[str, str], warning: str) -> None:
    config.json("topics.json", "topicConfigTable", {"t": topic_row("t", attributes=attributes)})
    found = read(config)
    assert [topic.type for topic in found.topics] == [TopicType.MIXED]
    assert len(found.warnings) == 1
    assert warning in found.warnings[0]


@pytest.mark.parametrize(
    ("name", "row", "reason"),
    [
        ("bad", 7, "not an object"),
        ("bad", None, "not an object"),
        ("bad", topic_row("bad", perm="rw"), "perm is 'rw'"),
        ("bad", topic_row("bad", queues=-1), "readQueueNums is -1"),
        ("bad", topic_row("bad", writeQueueNums=1.5), "writeQueueNums is 1.5"),
        ("bad", topic_row("bad", attributes=[1]), "attributes is"),
        ("bad", topic_row("bad", attributes={"a": 1}), "attributes is"),
        ("", topic_row(""), "blank"),
        ("b" * 256, topic_row("b"), "256 bytes"),
        ("%LMQ%dev1", topic_row("%LMQ%dev1"), "light queues are not topics"),
    ],
)
def test_topic_rows_that_make_no_sense_are_passed_over(config: Config, name: str, row: Any, reason: str) -> None:
    config.json("topics.json", "topicConfigTable", {name: row, "good": topic_row("good")})
    found = read(config)
    assert topic_names(found) == ["good"]
    assert len(found.warnings) == 1
    assert reason in found.warnings[0]
    assert "topics.json" in found.warnings[0]


@pytest.mark.parametrize(
    ("more", "group"),
    [
        ({"retryMaxTimes": 1}, Group("g", max_attempts=2)),
        ({"retryMaxTimes": 0}, Group("g", max_attempts=1)),
        ({"retryMaxTimes": -1}, Group("g", max_attempts=1)),
        ({"retryMaxTimes": 2**31 - 1}, Group("g", max_attempts=2**31 - 1)),
        ({"consumeEnable": False}, Group("g", enabled=False)),
        ({"consumeMessageOrderly": True}, Group("g", fifo=True)),
        ({"attributes": {"lite.bind.topic": "p"}}, Group("g", attributes={"lite.bind.topic": "p"})),
        ({"groupRetryPolicy": None}, Group("g")),
        ({"groupRetryPolicy": {"type": "EXPONENTIAL"}}, Group("g")),
        (
            {"groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 10, "max": 90}}},
            Group("g", backoff=ExponentialBackoff(10, 90, 2.0)),
        ),
        (
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 3000]}}},
            Group("g", backoff=CustomizedBackoff((1000, 3000))),
        ),
    ],
)
def test_what_a_group_row_comes_to(config: Config, more: dict[str, Any], group: Group) -> None:
    config.json("subscriptionGroup.json", "subscriptionGroupTable", {"g": group_row("g", **more)}, forbiddenTable={})
    found = read(config)
    assert found.groups == [group]
    assert found.warnings == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("x", "not an object"),
        (group_row("bad", retryMaxTimes="16"), "retryMaxTimes is '16'"),
        (group_row("bad", attributes="x"), "attributes is 'x'"),
        (
            group_row("bad", groupRetryPolicy={"customizedRetryPolicy": {"next": ["1s"]}}),
            "customizedRetryPolicy.next is",
        ),
    ],
)
def test_group_rows_that_make_no_sense_are_passed_over(config: Config, row: Any, reason: str) -> None:
    config.json("subscriptionGroup.json", "subscriptionGroupTable", {"bad": row, "good": group_row("good")})
    found = read(config)
    assert found.groups == [Group("good")]
    assert len(found.warnings) == 1
    assert reason in found.warnings[0]


@pytest.mark.parametrize("name", ["g" * 121, "g" * 255, "a b", "\u00fcber", "", "a\n"])
def test_groups_that_no_client_may_use_are_passed_over(config: Config, name: str) -> None:
    """RocketMQ 4 took groups of up to 255 characters; the names of their retry topics do not fit."""
    rows = {name: group_row(name), "g" * 120: group_row("good"), "CID_RMQ_SYS_TRANS": group_row("own")}
    config.json("subscriptionGroup.json", "subscriptionGroupTable", rows)
    found = read(config)
    assert [group.name for group in found.groups] == ["g" * 120, "CID_RMQ_SYS_TRANS"]
    [warning] = found.warnings
    assert f"group {name!r} was skipped: group name" in warning


@pytest.mark.parametrize("name", ["t" * 128, "a.b", "\u00fcber"])
def test_topics_that_no_client_may_use_are_named(config: Config, name: str) -> None:
    """They may hold messages, which can be sent to another topic."""
    rows = {
        name: topic_row(name),
        "%RETRY%" + "g" * 120 + "_" + "t" * 127: topic_row("retry"),
        "good": topic_row("good"),
    }
    config.json("topics.json", "topicConfigTable", rows)
    found = read(config)
    assert len(found.topics) == 3
    [warning] = found.warnings
    assert f"topic {name!r} has a name that no client may use" in warning


def test_a_group_with_impossible_delays_gets_the_default_ones(config: Config) -> None:
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 0, "max": 5, "multiplier": 2}}
    rows = {"g": group_row("g", retryMaxTimes=2, groupRetryPolicy=policy)}
    config.json("subscriptionGroup.json", "subscriptionGroupTable", rows)
    found = read(config)
    assert found.groups == [Group("g", max_attempts=3)]
    assert ["gets the default delays" in warning for warning in found.warnings] == [True]


def test_a_million_bad_rows_are_not_a_million_warnings(config: Config) -> None:
    config.json("topics.json", "topicConfigTable", {f"t{number}": 7 for number in range(WARNINGS_MAX + 50)})
    warnings = read(config).warnings
    assert len(warnings) == WARNINGS_MAX + 1
    assert warnings[-1] == "and 50 more warnings"


def test_the_topics_of_cluster_and_broker_are_marked_by_their_permission(config: Config) -> None:
    rows = {
        "ClusterX": topic_row("ClusterX", perm=7),
        "ClusterX_REPLY_TOPIC": topic_row("ClusterX_REPLY_TOPIC"),
        "mine_REPLY_TOPIC": topic_row("mine_REPLY_TOPIC"),
        "TBW102": topic_row("TBW102", perm=7),
    }
    config.json("topics.json", "topicConfigTable", rows)
    assert {topic.name: topic.is_system for topic in read(config).topics} == {
        "ClusterX": True,
        "ClusterX_REPLY_TOPIC": True,
        "mine_REPLY_TOPIC": False,
        "TBW102": True,
    }


# -- import


def test_an_import_changes_nothing_that_exists() -> None:
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    topics, groups, kept = TopicTable(engine), GroupTable(engine), ConsumerOffsetTable(engine)
    topics.create(Topic("t", TopicType.FIFO, 2, 2))
    groups.create(Group("g", max_attempts=3))
    batch = engine.batch()
    kept.stage(batch, "g", QueueId("t", 0), QueueOffset(50))
    engine.write(batch)
    metadata = RocketmqMetadata(
        topics=[Topic("t", TopicType.MIXED, 9, 9), Topic("u", TopicType.MIXED, 1, 1)],
        groups=[Group("g"), Group("h")],
        offsets=[
            ConsumerOffset("g", QueueId("t", 0), QueueOffset(4)),
            ConsumerOffset("g", QueueId("t", 1), QueueOffset(5)),
        ],
        light_offsets=[ConsumerOffset("%LMQ%d", QueueId("%LMQ%d", 0), QueueOffset(6))],
        warnings=[],
    )
    report = import_metadata(metadata, topics, groups, kept, engine)
    assert (report.topics, report.groups, report.offsets) == (1, 1, 2)
    assert topics.get("t") == Topic("t", TopicType.FIFO, 2, 2)
    assert groups.get("g") == Group("g", max_attempts=3)
    assert dict(kept.of_group("g")) == {QueueId("t", 0): 50, QueueId("t", 1): 5}
    assert dict(kept.of_group("%LMQ%d")) == {QueueId("%LMQ%d", 0): 6}


@pytest.mark.parametrize("surviving", [0, 1, 2, 3])
def test_an_import_cut_short_is_completed_by_the_next(surviving: int) -> None:
    """rmq#10195: of more than 2,000 topics some were missing after the transfer."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    rows = [ConsumerOffset("g", QueueId(f"t{number}", 0), QueueOffset(number)) for number in range(2_500)]
    metadata = RocketmqMetadata([], [], rows, [], [])
    full = import_metadata(metadata, TopicTable(engine), GroupTable(engine), ConsumerOffsetTable(engine), engine)
    assert full.offsets == 2_500
    batch = engine.batch()
    offsets_table = ConsumerOffsetTable(engine)
    lost = [row for row in rows if row.offset % 4 >= surviving]
    for row in lost:
        offsets_table.delete_topic(batch, row.queue.topic)
    engine.write(batch)
    again = import_metadata(metadata, TopicTable(engine), GroupTable(engine), offsets_table, engine)
    assert again.offsets == len(lost)
    assert len(list(offsets_table.of_group("g"))) == 2_500
