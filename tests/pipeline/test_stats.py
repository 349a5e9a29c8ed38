"""Statistics beside what is counted by hand, or by RocketMQ's own decoder, of the same store."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from quarry_mq.cli.pipeline.stats import print_statistics
from quarry_mq.pipeline.stats import Wanted, as_document, minutes, statistics
from quarry_mq.pipeline.stats.groups import lag_of_groups
from quarry_mq.pipeline.stats.job import POINTS_MAX
from quarry_mq.pipeline.stats.model import Duplicates, Point, RepeatedId, Statistics
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.metadata import READ_WRITE, ConsumerOffsetTable, Topic, TopicTable, TopicType
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.rocketmq import read_metadata
from quarry_mq.store.state.identity import open_state_engine
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.logs import Stored, write_store
from tests.pipeline.test_rebuild import open_and_close
from tests.record.records import message

DISK = PosixDisk()
MINUTE_MS = 60_000
BEGIN_MS = 1_795_219_800_000
"""The begin of a minute."""


def by_hand(records: list[dict[str, Any]], *fields: str) -> Counter[Any]:
    return Counter(tuple(record[field] for field in fields) for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rocks-clean", "file-kill"])
def test_stats_are_those_of_rocketmq_s_own_decoder(spark: SparkSession, golden_store: GoldenStore, name: str) -> None:
    folder = golden_store(name)
    records = [record for record in golden.records(folder) if "topic" in record]
    for record in records:
        record["tag"] = record["properties"].get("TAGS")
        record["keys"] = {key for key in record["properties"].get("KEYS", "").split(" ") if key}
    found = statistics(spark, DISK, folder / "store", Wanted(top=1000))
    assert found.volume.messages == len(records)
    assert found.volume.store_bytes == sum(record["storeSize"] for record in records)
    assert found.volume.body_bytes == sum(record["bodyLength"] for record in records)
    times = [record["storeTimestamp"] for record in records]
    assert (found.first_stored, found.last_stored) == (min(times), max(times))
    assert found.volume.messages_per_second == pytest.approx(len(records) * 1000 / (max(times) - min(times)))
    assert {topic.topic: topic.volume.messages for topic in found.topics} == {
        topic: count for (topic,), count in by_hand(records, "topic").items()
    }
    assert {(topic.topic, each.queue_id): each.volume.messages for topic in found.topics for each in topic.queues} == (
        by_hand(records, "topic", "queueId")
    )
    assert {(topic.topic, each.tag): each.volume.messages for topic in found.topics for each in topic.tags} == (
        by_hand(records, "topic", "tag")
    )
    assert {(topic.topic, each.key): each.messages for topic in found.topics for each in topic.keys} == Counter(
        (record["topic"], key) for record in records for key in record["keys"]
    )
    ids = Counter((record["topic"], record["properties"].get("UNIQ_KEY")) for record in records)
    repeated = {key: count for key, count in ids.items() if count > 1 and key[1] is not None}
    assert {(each.topic, each.uniq_key): each.records for each in found.repeated_ids} == repeated
    assert found.duplicates == Duplicates(len(repeated), sum(repeated.values()) - len(repeated))


def orders(count: int, *, queue: int, minute: int, tag: str = "blue", key: str = "k") -> Iterator[Stored]:
    for number in range(count):
        properties = {"TAGS": tag, "KEYS": f"{key} {key} every", "UNIQ_KEY": f"{queue}-{minute}-{number}"}
        each = message("orders", b"x" * 10, properties)._replace(queue_number=queue)
        yield each, BEGIN_MS + minute * MINUTE_MS + number


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten hours of two topics; the four queues of `orders` hold 60, 20, 0 and 0 messages."""
    root = tmp_path_factory.mktemp("store")
    again = message("orders", b"", {"UNIQ_KEY": "0-0-1"})._replace(queue_number=0)
    bare = message("quiet", b"", {})
    write_store(
        root,
        [
            *orders(40, queue=0, minute=0),
            *orders(20, queue=0, minute=599, tag="red", key="late"),
            *orders(20, queue=1, minute=599),
            (again, BEGIN_MS + 600 * MINUTE_MS),
            (again, BEGIN_MS + 600 * MINUTE_MS),
            (bare, BEGIN_MS + 600 * MINUTE_MS),
        ],
    )
    open_and_close(root)
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    for topic, queues in (("orders", 4), ("quiet", 1)):
        TopicTable(engine).update(Topic(topic, TopicType.NORMAL, queues, queues, READ_WRITE, {}))
    engine.close()
    return root


@pytest.fixture(scope="module")
def found(spark: SparkSession, store: Path) -> Statistics:
    return statistics(spark, DISK, store, Wanted(top=3))


@pytest.mark.slow
def test_volumes_are_told_by_time(found: Statistics) -> None:
    assert found.bucket_ms == 5 * MINUTE_MS
    first, last = BEGIN_MS, BEGIN_MS + 595 * MINUTE_MS
    assert [(point.at_ms, point.messages) for point in found.series] == [(first, 40), (last, 40), (last + 300_000, 3)]
    orders_, quiet = found.topics
    assert [(point.at_ms, point.messages) for point in orders_.series][-1] == (last + 300_000, 2)
    assert sum(point.store_bytes for point in orders_.series) == orders_.volume.store_bytes
    assert orders_.busiest_minute == Point(first, 40, orders_.series[0].store_bytes)
    assert (quiet.first_stored, quiet.last_stored) == (BEGIN_MS + 600 * MINUTE_MS,) * 2
    assert quiet.volume.messages_per_second == pytest.approx(1 / 36_000)


def test_queues_without_messages_count_for_the_skew(found: Statistics) -> None:
    orders_, quiet = found.topics
    assert orders_.queue_count == 4
    assert {each.queue_id: each.volume.messages for each in orders_.queues} == {0: 62, 1: 20}
    mean = 82 / 4
    assert orders_.skew.max_to_mean == pytest.approx(62 / mean)
    variance = ((62 - mean) ** 2 + (20 - mean) ** 2 + 2 * mean**2) / 4
    assert orders_.skew.variation == pytest.approx(math.sqrt(variance) / mean)
    assert (quiet.queue_count, quiet.skew.max_to_mean, quiet.skew.variation) == (1, 1.0, 0.0)


def test_a_key_that_a_message_names_twice_counts_once_and_the_id_is_none(found: Statistics) -> None:
    orders_, quiet = found.topics
    assert [(each.key, each.messages) for each in orders_.keys] == [("every", 80), ("k", 60), ("late", 20)]
    assert quiet.keys == ()
    assert [(each.tag, each.volume.messages) for each in orders_.tags] == [("blue", 60), ("red", 20), (None, 2)]


def test_repeated_ids_are_told_with_their_records(found: Statistics) -> None:
    assert found.duplicates == Duplicates(ids=1, extra_records=2)
    assert found.repeated_ids == (RepeatedId("orders", "0-0-1", 3),)
    assert [topic.duplicates for topic in found.topics] == [Duplicates(1, 2), Duplicates(0, 0)]


def printed(found: Statistics, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that people see."""
    print_statistics(found)
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_topics_and_times_may_be_chosen_and_lists_end(
    spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last_ms = BEGIN_MS + 599 * MINUTE_MS + 19
    wanted = Wanted(topics=("orders",), from_ms=BEGIN_MS + 39, to_ms=last_ms, top=1)
    found = statistics(spark, DISK, store, wanted)
    assert (found.volume.messages, found.topic_count) == (41, 1)
    assert (found.first_stored, found.last_stored) == (BEGIN_MS + 39, last_ms)
    (orders_,) = found.topics
    assert [(each.queue_id, each.volume.messages) for each in orders_.queues] == [(0, 21)]
    assert [(each.tag, each.volume.messages) for each in orders_.tags] == [("blue", 21)]
    assert orders_.tag_count == 2
    assert [(each.key, each.messages) for each in orders_.keys] == [("every", 41)]
    assert found.duplicates == Duplicates(0, 0)
    lines = printed(found, capsys)
    assert any(line.split()[:3] == ["orders", "0", "21"] for line in lines)
    assert any(line.split() == ["orders", "every", "41"] for line in lines)


@pytest.mark.slow
def test_of_nothing_there_are_zeros(spark: SparkSession, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = statistics(spark, DISK, store, Wanted(topics=("nobody",)))
    assert (found.volume.messages, found.volume.messages_per_second, found.topics) == (0, None, ())
    assert found.busiest_minute is None
    assert printed(found, capsys)[0] == "0 messages of 0 topics, 0 B of the log, 0 B of them bodies"


@pytest.mark.slow
def test_minutes_are_a_table_for_further_work(spark: SparkSession, store: Path) -> None:
    rows = minutes(spark, store, Wanted(topics=("orders",))).filter("tag = 'red'").collect()
    assert [(row.topic, row.queueId, row.minute, row.messages) for row in rows] == [
        ("orders", 0, BEGIN_MS + 599 * MINUTE_MS, 20)
    ]


@pytest.mark.slow
def test_a_series_has_few_points_however_long_the_time(spark: SparkSession, tmp_path: Path) -> None:
    bare, year_ms = message("orders", b"", {}), 365 * 24 * 60 * MINUTE_MS
    write_store(tmp_path, [(bare, BEGIN_MS + number * year_ms // 200) for number in range(20_000)])
    found = statistics(spark, DISK, tmp_path, Wanted())
    assert 100 < len(found.series) <= POINTS_MAX + 1
    assert sum(point.messages for point in found.series) == 20_000


@pytest.mark.slow
def test_damage_is_told_with_file_and_offset_and_all_else_counted(spark: SparkSession, tmp_path: Path) -> None:
    write_store(tmp_path, orders(9, queue=0, minute=0))
    segment = tmp_path / "commitlog" / f"{0:020}"
    with segment.open("r+b") as file:
        file.seek(88)
        file.write(b"\xff\xfe")
    found = statistics(spark, DISK, tmp_path, Wanted())
    assert found.volume.messages == 8
    assert found.damage.count == 1
    assert found.damage.first == (f"{segment}: offset 0: the body does not match its CRC",)


# -- groups


@pytest.mark.slow
def test_lag_is_counted_against_the_ends_of_queues(spark: SparkSession, tmp_path: Path) -> None:
    # dead letters that were sent again, and that nobody has come for
    again = [
        (each._replace(topic=f"%RETRY%{group}_orders"), stored_ms)
        for group in ("behind", "stranger")
        for each, stored_ms in orders(3, queue=0, minute=0)
    ]
    write_store(
        tmp_path,
        [*orders(40, queue=0, minute=0), *orders(20, queue=1, minute=0), *orders(5, queue=2, minute=0), *again],
    )
    open_and_close(tmp_path)
    positions = {
        ("ahead", QueueId("orders", 0)): 41,  # a recovery cut the end off
        ("ahead", QueueId("orders", 1)): 20,
        ("ahead", QueueId("orders", 2)): 5,
        ("behind", QueueId("orders", 0)): 10,
        ("behind", QueueId("orders", 1)): 19,  # and has never read queue 2
        ("elsewhere", QueueId("gone", 7)): 3,
    }
    set_positions(tmp_path, positions)
    lag = statistics(spark, DISK, tmp_path, Wanted()).lag
    assert lag.not_known is None
    assert (lag.group_count, lag.lag, lag.in_flight) == (3, 39, 0)
    assert [(each.group, each.topic, each.queues, each.lag, each.most_behind) for each in lag.groups] == [
        ("behind", "orders", 3, 36, 0),
        ("behind", "%RETRY%behind_orders", 1, 3, 0),
        ("ahead", "orders", 3, 0, 0),
        ("elsewhere", "gone", 1, 0, 7),
    ]
    (only,) = statistics(spark, DISK, tmp_path, Wanted(topics=("gone",))).lag.groups
    assert only.group == "elsewhere"


def set_positions(root: Path, positions: dict[tuple[str, QueueId], int]) -> None:
    engine = open_state_engine(StorePaths(root).quarry, create=False)
    batch, table = engine.batch(), ConsumerOffsetTable(engine)
    for (group, queue), offset in positions.items():
        table.stage(batch, group, queue, QueueOffset(offset))
    engine.write(batch, sync=True)
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_lag_of_a_store_of_rocketmq_comes_from_its_own_offsets(
    spark: SparkSession, golden_store: GoldenStore, name: str
) -> None:
    root = golden_store(name) / "store"
    metadata = read_metadata(DISK, root)
    expected: dict[tuple[str, str], int] = defaultdict(int)
    with OfflineStore.open(DISK, root) as opened:
        reader = opened.queue_reader()
        stands = {(group, queue): offset for group, queue, offset in (*metadata.offsets, *metadata.light_offsets)}
        for group, topic in {(group, queue.topic) for group, queue in stands}:
            for queue in reader.queues(topic):
                bounds = reader.bounds(queue)
                at = max(stands.get((group, queue), bounds.minimum), bounds.minimum)
                expected[group, topic] += max(bounds.maximum - at, 0)
    lag = lag_of_groups(spark, DISK, root, Wanted(top=1000))
    assert {(each.group, each.topic): each.lag for each in lag.groups if each.lag} == {
        key: expected_lag for key, expected_lag in expected.items() if expected_lag
    }
    assert lag.lag == sum(expected.values())
    assert lag.in_flight is None


@pytest.mark.slow
def test_of_a_running_store_messages_are_counted_and_groups_are_not(
    spark: SparkSession, golden_copy: GoldenStore, capsys: pytest.CaptureFixture[str]
) -> None:
    root = golden_copy("rocks-clean") / "store"
    open_and_close(root)
    lock = DISK.lock(StorePaths(root).lock)
    try:
        found = statistics(spark, DISK, root, Wanted())
    finally:
        lock.release()
    assert found.volume.messages > 1000
    assert found.lag.not_known is not None
    assert "a broker is running on this store" in found.lag.not_known
    assert any("is not known: " in line for line in printed(found, capsys))


# -- as others read it


def test_the_document_has_the_fields_of_the_manual(found: Statistics) -> None:
    """docs/pipeline.md names each of them."""
    text = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    manual = text[text.index("## Statistics") :].partition("\n## ")[0]
    missing = sorted(name for name in names_in(as_document(found)) if f"`{name}`" not in manual)
    assert not missing


def names_in(value: object) -> set[str]:
    match value:
        case dict():
            return set(value).union(*map(names_in, value.values()))
        case list():
            return set().union(*map(names_in, value))
    return set()


@pytest.mark.slow
def test_names_do_not_steer_a_terminal(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = message("orders", b"", {"TAGS": "\x1b[2J", "KEYS": "a\rb"})
    write_store(tmp_path, [(hostile, BEGIN_MS)])
    text = "\n".join(printed(statistics(spark, DISK, tmp_path, Wanted(topics=("orders",))), capsys))
    assert "\x1b" not in text
    assert "\r" not in text
    assert "'\\x1b[2J'" in text
