"""Makers of RocketMQ metadata as it lies in a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine


class Config:
    """A `config/` directory to fill."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "config"
        self.path.mkdir(parents=True)

    def write(self, name: str, text: str | bytes) -> None:
        (self.path / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def json(self, name: str, table: str, rows: object, counter: int = 1, timestamp: int = 1, **more: object) -> None:
        """A table in a JSON file, proper JSON for once."""
        version = {"counter": counter, "stateVersion": 0, "timestamp": timestamp}
        self.write(name, json.dumps({"dataVersion": version, table: rows, **more}))

    def database(self, name: str, families: Mapping[str, Mapping[bytes, bytes]]) -> None:
        options = {family: FamilyOptions() for family in families}
        engine = RocksEngine.open(self.path / name, options, create=True, write_ahead_log=True)
        batch = engine.batch()
        for family, rows in families.items():
            for key, value in rows.items():
                batch.put(engine.family(family), key, value)
        engine.write(batch)
        engine.close()

    def v1(
        self,
        name: str,
        rows: Mapping[str, Any],
        counter: int | None = None,
        **families: Mapping[bytes, bytes],
    ) -> None:
        """A table in a database of its own, as config manager v1 lays it out."""
        versions: dict[bytes, bytes] = {}
        if counter is not None:
            version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
            versions[b"kvDataVersionKey"] = json.dumps(version).encode()
        encoded = {key.encode(): json.dumps(row).encode() for key, row in rows.items()}
        self.database(name, {"default": encoded, "kvDataVersion": versions, **families})


def v2_version_row(table: int, counter: int) -> dict[bytes, bytes]:
    return {b"\x01" + pack(">h", table) + b"\x01data_version": pack(">qqq", 0, 1, counter)}


def v2_named_row(table: int, name: str, row: Mapping[str, Any]) -> dict[bytes, bytes]:
    encoded = name.encode()
    key = b"\x01" + pack(">h", table) + b"\x02" + pack(">h", len(encoded)) + encoded
    return {key: b"\x01" + json.dumps(row).encode()}


def v2_offset_row(group: str, topic: str, queue: int, offset: int) -> dict[bytes, bytes]:
    groups, topics = group.encode(), topic.encode()
    key = b"".join(
        (
            b"\x01\x00\x01\x02",
            pack(">h", len(groups)) + groups + b"\x01",
            pack(">h", len(topics)) + topics + b"\x01",
            pack(">i", queue),
        )
    )
    return {key: pack(">q", offset)}


def topic_row(name: str, queues: int = 4, perm: object = 6, **more: Any) -> dict[str, Any]:
    return {
        "attributes": {},
        "order": False,
        "perm": perm,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
        **more,
    }


def group_row(name: str, **more: Any) -> dict[str, Any]:
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
        **more,
    }


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tmp_path / "store")
