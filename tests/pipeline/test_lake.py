"""Tables of a lake, read back with pyiceberg, beside what RocketMQ's own decoder reads of the same store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.lake_environment import HERE, Iceberg, iceberg
from tests.pipeline.lake_killer import KILLED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]

Row = dict[str, Any]
COMPRESSED = 1
QUEUED = (0, 8)
"""Transaction states of records that queues hold: none, and committed."""


@pytest.fixture
def lake(java: None, tmp_path: Path) -> Iceberg:
    return iceberg(tmp_path / "warehouse")


def of_users(line: Row) -> bool:
    topic = line["topic"]
    is_internal = topic.startswith(("%", "rmq_sys_", "RMQ_SYS_")) or topic == "SCHEDULE_TOPIC_XXXX"
    return not is_internal and line["sysFlag"] & 12 in QUEUED


def expected(store: Path) -> list[Row]:
    """Return what RocketMQ's decoder has read, sorted by position."""
    lines = [line for line in golden.records(store) if "blank" not in line and of_users(line)]
    return sorted(lines, key=lambda line: (line["topic"], line["queueId"], line["queueOffset"]))


def assert_equal(rows: list[Row], lines: list[Row]) -> None:
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        for name in ("topic", "queueId", "queueOffset", "storeTimestamp", "bornTimestamp", "bornHost", "storeHost"):
            assert row[name] == line[name], (name, row, line)
        if not line["sysFlag"] & COMPRESSED:
            assert (row["bodyLength"], row["bodySha1"]) == (line["bodyLength"], line["bodySha1"])
        properties = line["properties"]
        assert row["uniqKey"] == (properties.get("UNIQ_KEY") or line["offsetMsgId"])
        assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
        assert row["properties"].items() <= properties.items()
        assert row["broker"] == "quarry"


@pytest.mark.parametrize("name", golden.NAMES)
def test_a_store_is_appended_once_and_stays_the_same_when_compacted(
    lake: Iceberg, golden_store: GoldenStore, name: str
) -> None:
    store = golden_store(name)
    lines = expected(store)
    first = lake.lake(store / "store", "--batch-mib", 1).fields
    assert first["messages"] == len(lines)
    assert first["commits"] > 1
    rows = lake.rows()
    assert_equal(rows, lines)
    maintained = lake.maintain("--retention-hours", 0).fields
    assert maintained["rewrittenFiles"] > maintained["addedFiles"] > 0
    assert lake.rows() == rows
    # all snapshots of appends have expired, and the position is still known
    assert lake.lake(store / "store", "--batch-mib", 1).fields["messages"] == 0
    assert lake.rows() == rows


STEPS = ("begin", "begin+", "stage", "stage+", "add_offsets", "add_offsets+", "publish", "publish+")


def test_a_driver_that_is_killed_at_any_step_leaves_no_gap_and_nothing_twice(
    lake: Iceberg, golden_store: GoldenStore
) -> None:
    store = golden_store("rocks-clean")
    command = ("quarry_mq", str(store / "store"), "lake.db.messages")
    for step in STEPS:
        time = 2 if step == "publish+" else 1
        words = ("pipeline", "lake", *command[1:], "--batch-mib", "1", "--master", "local[2]", *lake.conf)
        ran = lake.run(HERE / "lake_killer.py", step, time, *words)
        assert ran.status == KILLED, ran.errors
    done = lake.lake(store / "store", "--batch-mib", 1).fields
    assert done["messages"] < len(expected(store)), "killed runs have appended the first messages"
    assert_equal(lake.rows(), expected(store))
    assert lake.maintain("--retention-hours", 0).fields["removedBranches"] == 0, "a run has removed them"


def test_damage_is_left_out_and_named(lake: Iceberg, golden_copy: GoldenStore) -> None:
    store = golden_copy("rocks-clean")
    lines = [line for line in golden.records(store) if "blank" not in line]
    victim = lines[700]
    segment = max(path for path in (store / "store" / "commitlog").iterdir() if int(path.name) <= victim["phyOffset"])
    with segment.open("r+b") as log:
        log.seek(victim["phyOffset"] - int(segment.name) + 4)
        log.write(b"\xff\xff\xff\xff")
    ran = lake.lake(store / "store", "--batch-mib", 1)
    assert ran.status == 1
    assert ran.fields["damagedPlaces"] == 1
    assert f"offset {victim['phyOffset']}" in ran.fields["firstDamaged"][0]
    assert_equal(lake.rows(), [line for line in expected(store) if line["phyOffset"] != victim["phyOffset"]])


def test_another_store_is_refused(lake: Iceberg, golden_copy: GoldenStore, tmp_path: Path) -> None:
    store = golden_copy("rocks-clean") / "store"
    log = sorted((store / "commitlog").iterdir())
    aside = tmp_path / "later"
    aside.mkdir()
    for segment in log[2:]:
        shutil.move(segment, aside)
    lake.lake(store, "--batch-mib", 1)
    other = lake.lake(golden_copy("file-clean") / "store")
    assert other.status == 2
    assert "it is another store" in other.errors
    refused = lake.lake(store, "--broker", "broker-a")
    assert refused.status == 2
    assert "of the broker quarry" in refused.errors
