"""Topics, groups and consumer offsets go back to RocketMQ, and what it reads is what we had."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.server.delivery.state.inflight import InFlight, InFlightTable
from quarry_mq.store.errors import StoreUnusable
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
from quarry_mq.store.rocketmq import Form, export_metadata, import_metadata, parse_json, read_metadata
from quarry_mq.store.rocketmq.model import format_json
from quarry_mq.store.state.identity import FAMILIES
from quarry_mq.store.state.in_flight_key import subscription_prefix
from tests.rocketmq.conftest import Config, group_row, topic_row

GoldenStore = Callable[[str], Path]
NOW_MS = 1_700_000_000_000
ORDERS = QueueId("orders", 0)
LIGHT = QueueId("%LMQ%device/1", 0)


@pytest.fixture
def engine() -> KeyValueEngine:
    return MemoryEngine(FAMILIES, write_ahead_log=True)


def fill(engine: KeyValueEngine) -> None:
    """Something of everything that RocketMQ can have."""
    topics, groups, offsets = TopicTable(engine), GroupTable(engine), ConsumerOffsetTable(engine)
    read = Permission.READ
    topics.create(Topic("orders", TopicType.FIFO, 4, 8, read, {"lite.topic.expiration": "30", "order": "true"}))
    topics.create(Topic("bills", TopicType.MIXED, 1, 1))
    topics.create(Topic("\u00fcber", TopicType.DELAY, 2, 2), internal=True)
    groups.create(Group("billing"))
    groups.create(Group("slow", True, 3, False, CustomizedBackoff((1000, 5000)), {"owner": "me"}))
    groups.create(Group("steep", backoff=ExponentialBackoff(1000, 60_000, 3.0)))
    batch = engine.batch()
    for queue, offset in ((ORDERS, 12), (QueueId("orders", 3), 9), (LIGHT, 7)):
        offsets.stage(batch, "billing", queue, QueueOffset(offset))
    engine.write(batch, sync=True)


def exported(engine: KeyValueEngine, root: Path, form: Form = Form.JSON) -> Any:
    return export_metadata(PosixDisk(), engine, root / "config", form, now_ms=NOW_MS)


def tables(engine: KeyValueEngine) -> tuple[list[Any], ...]:
    return (
        list(TopicTable(engine).list()),
        list(GroupTable(engine).list()),
        list(ConsumerOffsetTable(engine).all_rows()),
    )


@pytest.mark.parametrize("form", list(Form))
def test_what_was_exported_is_imported_as_it_was(engine: KeyValueEngine, tmp_path: Path, form: Form) -> None:
    fill(engine)
    done = exported(engine, tmp_path, form)
    assert (done.topics, done.groups, done.offsets, done.lowered) == (3, 3, 3, 0)
    found = read_metadata(PosixDisk(), tmp_path)
    assert [each for each in found.warnings if "a name that no client may use" not in each] == []
    assert [each.queue for each in found.light_offsets] == [LIGHT]
    other = MemoryEngine(FAMILIES, write_ahead_log=True)
    import_metadata(found, TopicTable(other), GroupTable(other), ConsumerOffsetTable(other), other)
    assert tables(other) == tables(engine)


def with_numbers(value: Any, *, name: str = "") -> Any:
    """Queue numbers as the keys that they are."""
    if isinstance(value, dict):
        is_of_queues = "@" in name
        return {int(key) if is_of_queues else key: with_numbers(each, name=key) for key, each in value.items()}
    return [with_numbers(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["file-clean", "file-kill", "double-clean"])
@pytest.mark.parametrize("file", ["topics.json", "subscriptionGroup.json", "lmqConsumerOffset.json"])
def test_documents_have_the_form_of_rocketmqs(golden_store: GoldenStore, name: str, file: str) -> None:
    text = (golden_store(name) / "store" / "config" / file).read_bytes()
    assert format_json(with_numbers(parse_json(text))).encode() == text


@pytest.mark.parametrize("name", ["file-clean", "rocks-clean"])
def test_a_store_of_rocketmq_gets_its_metadata_back(golden_store: GoldenStore, tmp_path: Path, name: str) -> None:
    """The counter is above those of all copies, so RocketMQ takes ours, also where it keeps its own in RocksDB."""
    shutil.copytree(golden_store(name) / "store" / "config", tmp_path / "config")
    disk, engine = PosixDisk(), MemoryEngine(FAMILIES, write_ahead_log=True)
    before = read_metadata(disk, tmp_path)
    import_metadata(before, TopicTable(engine), GroupTable(engine), ConsumerOffsetTable(engine), engine)
    exported(engine, tmp_path)
    after = read_metadata(disk, tmp_path)

    def by_name(each: Any) -> Any:
        return each.name

    assert sorted(after.topics, key=by_name) == sorted(before.topics, key=by_name)
    assert sorted(after.groups, key=by_name) == sorted(before.groups, key=by_name)
    assert sorted(after.offsets) == sorted(before.offsets)
    older = [warning for warning in after.warnings if "older copy" in warning]
    assert len(older) == (3 if name == "rocks-clean" else 0)


def test_what_only_rocketmq_knows_of_a_row_is_kept(engine: KeyValueEngine, config: Config) -> None:
    fill(engine)
    config.json(
        "topics.json",
        "topicConfigTable",
        {
            "orders": topic_row("orders", 4, topicSysFlag=5, attributes={"message.type": "NORMAL"}),
            "TBW102": topic_row("TBW102", 8, perm=7),
            "gone": topic_row("gone"),
        },
        counter=41,
    )
    config.json(
        "subscriptionGroup.json",
        "subscriptionGroupTable",
        {"billing": group_row("billing", retryQueueNums=3)},
        forbiddenTable={"billing": {"orders": 1}},
    )
    TopicTable(engine).add_missing([Topic("TBW102", TopicType.MIXED, 8, 8)])
    exported(engine, config.root)
    topics = parse_json((config.path / "topics.json").read_bytes())
    groups = parse_json((config.path / "subscriptionGroup.json").read_bytes())
    assert topics["dataVersion"] == groups["dataVersion"] == {"counter": 42, "stateVersion": 0, "timestamp": NOW_MS}
    assert topics["topicConfigTable"].keys() == {"TBW102", "bills", "orders", "\u00fcber"}
    assert topics["topicConfigTable"]["TBW102"]["perm"] == 7, "a template stays one"
    orders = topics["topicConfigTable"]["orders"]
    assert (orders["topicSysFlag"], orders["order"], orders["attributes"]["message.type"]) == (5, True, "FIFO")
    assert groups["forbiddenTable"] == {"billing": {"orders": 1}}
    assert groups["subscriptionGroupTable"]["billing"]["retryQueueNums"] == 3
    kept = json.loads((config.path / "topics.json.bak").read_text())
    assert kept["dataVersion"]["counter"] == 41


def test_a_group_with_messages_in_flight_goes_on_at_the_first_of_them(engine: KeyValueEngine, tmp_path: Path) -> None:
    """RocketMQ knows one offset per queue: what is not acknowledged must come again."""
    fill(engine)
    batch = engine.batch()
    for offset in (10, 8, 11):
        row = InFlight(NOW_MS, 1, 0, 1, "client")
        InFlightTable(engine).put(batch, subscription_prefix("billing", "orders"), 0, offset, row)
    engine.write(batch, sync=True)
    assert exported(engine, tmp_path).lowered == 1
    offsets = {each.queue: each.offset for each in read_metadata(PosixDisk(), tmp_path).offsets}
    assert offsets == {ORDERS: 8, QueueId("orders", 3): 9}


def test_both_files_of_offsets_are_written(engine: KeyValueEngine, tmp_path: Path) -> None:
    """RocketMQ reads the second one with `enableLmq`, and else the first."""
    fill(engine)
    exported(engine, tmp_path)
    plain = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert 'orders@billing":{\n\t\t\t0:12,\n\t\t\t3:9\n\t\t}' in plain
    assert not re.search("LMQ", plain)
    light = parse_json((tmp_path / "config" / "lmqConsumerOffset.json").read_bytes())
    assert light["lmqOffsetTable"] == {"%LMQ%device/1@billing": 7}
    assert light["offsetTable"] == {"orders@billing": {"0": 12, "3": 9}}
    assert light["groupTopicMap"] == {"billing": ["orders"]}


def test_a_database_that_is_there_is_not_touched(engine: KeyValueEngine, tmp_path: Path) -> None:
    fill(engine)
    exported(engine, tmp_path, Form.ROCKSDB)
    with pytest.raises(StoreUnusable, match="there is an export already"):
        exported(engine, tmp_path, Form.ROCKSDB)
