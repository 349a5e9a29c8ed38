"""The table `messages` beside the exact decoder and what RocketMQ's own decoder says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType

from quarry_mq.cli.offline.record_text import record_fields
from quarry_mq.pipeline.source import schema_of
from quarry_mq.pipeline.source.log_splits import LogSplit
from quarry_mq.pipeline.source.message_columns import COLUMNS
from quarry_mq.pipeline.source.messages import MessageReader
from quarry_mq.pipeline.source.options import InvalidOption, read_options
from quarry_mq.store.commitlog import CommitLogReader, SegmentList
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset, QueueOffset
from quarry_mq.store.record import StoredMessage, encode_record
from quarry_mq.store.rocketmq import Checkpoint, encode_checkpoint
from tests import golden
from tests.conftest import GoldenStore
from tests.pipeline.tables import Row, messages, plain, reader, rows_of
from tests.record.records import message
from tests.scan.logs import SEGMENT_SIZE, STORED_AT_MS, Sent, random_messages, sent, write_log

ALL = ",".join(COLUMNS)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(messages)` is a store with a log of these."""

    def write_it(some: list[Sent], **how: object) -> Path:
        write_log(PosixDisk(), some, directory=StorePaths(tmp_path).commit_log, **how).close()  # type: ignore[arg-type]
        return tmp_path

    return write_it


def decoded(root: Path) -> Iterator[Row]:
    """The rows of all columns, from the exact decoder."""
    segments = SegmentList(PosixDisk(), StorePaths(root).commit_log, None, writable=False)
    for record in CommitLogReader(segments).scan(segments.minimum):
        if isinstance(record, StoredMessage):
            fields = record_fields(record)
            properties = record.properties
            known = {
                "uniqKey": properties.get("UNIQ_KEY"),
                "tags": properties.get("TAGS"),
                "keys": properties.get("KEYS"),
                "body": record.body,
            }
            yield {name: known[name] if name in known else fields[name] for name in COLUMNS}
    segments.close()


@pytest.mark.parametrize("split_bytes", [2_000, pytest.param(1 << 30, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_every_field_is_what_rocketmqs_own_decoder_reads(
    golden_store: GoldenStore, name: str, split_bytes: int
) -> None:
    store = golden_store(name)
    found = messages(store / "store", columns=ALL, splitBytes=split_bytes)
    for row, expected in zip(found, (line for line in golden.records(store) if "blank" not in line), strict=True):
        told = plain(row)
        body = told.pop("body")
        assert (len(body), hashlib.sha1(body).hexdigest()) == (expected["bodyLength"], expected.pop("bodySha1"))
        for text, property_name in (("uniqKey", "UNIQ_KEY"), ("tags", "TAGS"), ("keys", "KEYS")):
            assert told.pop(text) == expected["properties"].get(property_name)
        told["offsetMsgId"] = told["msgId"]
        assert told == expected


@pytest.mark.parametrize("seed", range(6))
def test_every_column_of_odd_records_is_what_the_exact_decoder_reads(write: Callable[..., Path], seed: int) -> None:
    root = write(random_messages(Random(seed), 300))
    assert list(map(plain, messages(root, columns=ALL))) == list(decoded(root))


@settings(max_examples=12)
@given(split_bytes=st.integers(50, 3 * SEGMENT_SIZE))
def test_splits_of_any_size_hold_every_record_once(
    golden_store: GoldenStore, tmp_path_factory: pytest.TempPathFactory, split_bytes: int
) -> None:
    root = tmp_path_factory.mktemp("store")
    write_log(PosixDisk(), random_messages(Random(3), 200), directory=StorePaths(root).commit_log).close()
    whole = messages(root, columns="phyOffset")
    assert messages(root, columns="phyOffset", splitBytes=split_bytes) == whole
    assert len(whole) == 200


def test_the_body_is_read_only_if_it_is_asked_for(write: Callable[..., Path]) -> None:
    root = write(random_messages(Random(1), 3))
    assert list(messages(root)[0]) == [name for name in COLUMNS if name != "body"]
    assert list(messages(root, columns="topic, body")[0]) == ["topic", "body"]


def test_a_plan_opens_the_last_segment_alone_and_a_task_its_own(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(random_messages(Random(5), 400))
    made = reader(root, columns="phyOffset")
    opened: set[PhysicalOffset] = set()
    listed: list[Path] = []
    segment_at, list_directory = SegmentList.segment_at, PosixDisk.list_directory

    def note_segment(segments: SegmentList, offset: PhysicalOffset) -> object:
        opened.add(segments.base_of(offset))
        return segment_at(segments, offset)

    def note_list(disk: PosixDisk, path: Path) -> object:
        listed.append(path)
        return list_directory(disk, path)

    monkeypatch.setattr(SegmentList, "segment_at", note_segment)
    monkeypatch.setattr(PosixDisk, "list_directory", note_list)
    parts = [part for part in made.partitions() if isinstance(part, LogSplit)]
    assert len(parts) > 5
    assert opened <= {parts[-1].segment_begin, PhysicalOffset(parts[-1].segment_begin + SEGMENT_SIZE)}
    for part in parts:
        opened.clear()
        listed.clear()
        assert list(made.read(part))
        assert (opened, listed) == ({part.segment_begin}, [])


# -- filters

CONDITIONS: list[tuple[Filter, Callable[[Row], bool]]] = [
    (EqualTo(("topic",), "größe"), lambda row: row["topic"] == "größe"),
    (In(("topic",), ("orders-1", "orders-2", "none")), lambda row: row["topic"] in ("orders-1", "orders-2")),
    (Not(In(("tags",), ("TagA",))), lambda row: row["tags"] is not None and row["tags"] != "TagA"),
    (Not(EqualTo(("tags",), "TagA")), lambda row: row["tags"] is not None and row["tags"] != "TagA"),
    (IsNull(("tags",)), lambda row: row["tags"] is None),
    (IsNotNull(("keys",)), lambda row: row["keys"] is not None),
    (EqualTo(("queueId",), 2**31 - 1), lambda row: row["queueId"] == 2**31 - 1),
    (EqualTo(("queueId",), 2**40), lambda row: False),
    (GreaterThan(("phyOffset",), 20_000), lambda row: row["phyOffset"] > 20_000),
    (
        GreaterThanOrEqual(("storeTimestamp",), STORED_AT_MS + 60),
        lambda row: row["storeTimestamp"] >= STORED_AT_MS + 60,
    ),
    (LessThan(("storeTimestamp",), STORED_AT_MS + 60), lambda row: row["storeTimestamp"] < STORED_AT_MS + 60),
    (LessThanOrEqual(("phyOffset",), 30_000), lambda row: row["phyOffset"] <= 30_000),
    (StringStartsWith(("topic",), "orders"), lambda row: row["topic"].startswith("orders")),
    (StringEndsWith(("topic",), "-3"), lambda row: row["topic"].endswith("-3")),
    (StringContains(("tags",), "ag"), lambda row: row["tags"] is not None and "ag" in row["tags"]),
    (GreaterThan(("uniqKey",), "8"), lambda row: row["uniqKey"] is not None and row["uniqKey"] > "8"),
]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_filters_keep_exactly_the_rows_for_which_they_hold(write: Callable[..., Path], seed: int) -> None:
    random = Random(seed)
    root = write(random_messages(random, 300))
    everything = messages(root, columns=ALL)
    for condition, holds in CONDITIONS:
        found = messages(root, condition, columns=ALL, splitBytes=random.randrange(50, 40_000), clockMarginMs=0)
        assert found == [row for row in everything if holds(row)], condition
    for _ in range(20):
        some = random.sample(CONDITIONS, 3)
        found = messages(root, *(condition for condition, _ in some), columns=ALL, splitBytes=5_000, clockMarginMs=0)
        assert found == [row for row in everything if all(holds(row) for _, holds in some)], some


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("properties",), "x"),
        EqualTo(("body",), b"x"),
        EqualTo(("topic",), None),
        In(("topic",), ("a", None)),
        EqualTo(("properties", "a"), "x"),
        EqualTo(("phyOffset",), 1.5),
    ],
)
def test_filters_that_are_left_to_spark(write: Callable[..., Path], condition: Filter) -> None:
    assert list(reader(write([sent(message())])).pushFilters([condition])) == [condition]


def test_a_range_of_offsets_or_times_reads_only_its_splits(write: Callable[..., Path]) -> None:
    root = write(random_messages(Random(2), 400))
    everything = messages(root, columns="phyOffset,storeTimestamp")
    middle = everything[200]
    whole = len(reader(root, splitBytes=4096).partitions())
    for name in ("phyOffset", "storeTimestamp"):
        narrowed = reader(root, splitBytes=4096, clockMarginMs=0, columns="phyOffset,storeTimestamp")
        value = middle[name]
        assert not list(narrowed.pushFilters([GreaterThanOrEqual((name,), value), LessThanOrEqual((name,), value)]))
        parts = narrowed.partitions()
        assert len({part.segment_begin for part in parts if isinstance(part, LogSplit)}) == 1
        assert len(parts) <= (2 if name == "phyOffset" else SEGMENT_SIZE // 4096) < whole
        assert rows_of(narrowed) == [middle]


def test_times_out_of_order_are_found_within_the_margin(write: Callable[..., Path]) -> None:
    """Store times may go back when a machine's clock is set: the margin says by how much."""
    root = write(random_messages(Random(2), 400))
    early = reader(root, splitBytes=4096)
    assert not list(early.pushFilters([LessThan(("storeTimestamp",), STORED_AT_MS + 1)]))
    assert len(early.partitions()) == len(reader(root, splitBytes=4096).partitions())


# -- damage


def damage(root: Path, at: int, octets: bytes) -> Path:
    """Overwrite bytes of the log; returns the file."""
    path = StorePaths(root).commit_log / f"{at // SEGMENT_SIZE * SEGMENT_SIZE:020}"
    with path.open("r+b") as file:
        file.seek(at % SEGMENT_SIZE)
        file.write(octets)
    return path


@pytest.mark.parametrize("split_bytes", [200, 3000, 1 << 30])
def test_damage_fails_the_reading_and_is_named(write: Callable[..., Path], split_bytes: int) -> None:
    root = write(random_messages(Random(4), 200))
    wrong = messages(root, columns="phyOffset,bodyLength")[77]["phyOffset"]
    path = damage(root, wrong + 60, b"\xff\xff")
    with pytest.raises(StoreDamaged, match=rf"{path}: offset {wrong}: ."):
        messages(root, splitBytes=split_bytes)


@pytest.mark.parametrize("what", ["flipped", "zeros", "size"])
@pytest.mark.parametrize("split_bytes", [200, 3000, 1 << 30])
def test_damage_in_quarantine_is_a_row_and_takes_no_other_with_it(
    write: Callable[..., Path], split_bytes: int, what: str
) -> None:
    root = write(random_messages(Random(4), 200))
    before = messages(root)
    wrong = before[77]
    at, size = wrong["phyOffset"], wrong["storeSize"]
    path = damage(root, *{"flipped": (at + 60, b"\xff"), "zeros": (at, bytes(size)), "size": (at, b"\0\0\1\0")}[what])
    found = messages(root, mode="quarantine", splitBytes=split_bytes)
    [told] = [row for row in found if row["damage"] is not None]
    assert (told["phyOffset"], told["storeSize"], told["topic"]) == (at, size, None)
    assert told["damage"].startswith(f"{path}: ")
    rest = [{name: value for name, value in row.items() if name != "damage"} for row in found if row is not told]
    assert rest == [row for row in before if row is not wrong]


def test_without_checks_of_sums_a_flipped_bit_passes(write: Callable[..., Path]) -> None:
    root = write([sent(message(body=b"body")) for _ in range(9)])
    at = messages(root, columns="phyOffset")[4]["phyOffset"]
    damage(root, at + 88, b"B")
    assert messages(root, columns="body", checkCrc="false")[4]["body"] == b"Body"


def test_a_torn_end_is_the_end_only_where_a_store_was_not_stopped(write: Callable[..., Path]) -> None:
    some = random_messages(Random(8), 20)
    root = write(some, tail=b"\0\0\1\0 and no more of it")
    with pytest.raises(StoreDamaged, match="offset"):
        messages(root)
    StorePaths(root).abort.touch()
    assert len(messages(root)) == 20
    end = messages(root)[-1]
    durable = end["phyOffset"] + end["storeSize"] + 1
    StorePaths(root).checkpoint.write_bytes(encode_checkpoint(Checkpoint(confirmed_up_to=PhysicalOffset(durable))))
    with pytest.raises(StoreDamaged, match="offset"):
        messages(root)


def test_what_looks_like_a_record_inside_a_body_is_noticed(write: Callable[..., Path]) -> None:
    """Only who knows where its body will lie can write it, and then nothing is read twice or left out in silence."""
    inner = sent(message(body=b"inner"))
    probe = write([sent(message(body=bytes(400)))])
    start = messages(probe, columns="phyOffset,storeSize,bodyLength")[0]
    assert start["phyOffset"] == 0
    copy = bytes(encode_record(inner[0], QueueOffset(0), PhysicalOffset(88 + 100), 1, inner[1], crc_property=True))
    for file in StorePaths(probe).commit_log.iterdir():
        file.unlink()
    root = write([sent(message(body=bytes(100) + copy + bytes(100))), sent(message())])
    assert len(messages(root)) == 2
    with pytest.raises(StoreDamaged, match=r"offset 188 lies within another one: set splitBytes"):
        messages(root, splitBytes=100)


# -- stores that brokers run on, and what is none


def test_of_a_running_store_what_is_durable_is_read(write: Callable[..., Path]) -> None:
    root = write(random_messages(Random(9), 50), tail=b"not durable, and not whole")
    rows = messages(write_checkpoint(root, 0), mode="quarantine")
    durable = [row for row in rows if row["damage"] is None]
    lock = PosixDisk().lock(StorePaths(root).lock)
    try:
        with pytest.raises(StoreLocked, match="has not said yet"):
            messages(root)
        write_checkpoint(root, durable[30]["phyOffset"])
        assert [row["phyOffset"] for row in messages(root)] == [row["phyOffset"] for row in durable[:30]]
    finally:
        lock.release()


def write_checkpoint(root: Path, confirmed: int) -> Path:
    StorePaths(root).checkpoint.write_bytes(encode_checkpoint(Checkpoint(confirmed_up_to=PhysicalOffset(confirmed))))
    return root


def test_a_log_of_nothing_has_no_rows(tmp_path: Path) -> None:
    disk = PosixDisk()
    directory = StorePaths(tmp_path).commit_log
    disk.make_directories(directory)
    disk.create_segment(directory / f"{0:020}", SEGMENT_SIZE).close()
    assert reader(tmp_path).partitions() == []
    assert messages(tmp_path) == []


def test_a_directory_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        messages(tmp_path)


# -- options


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "option 'path': the directory of a store is needed"),
        ({"path": "x", "tabel": "messages"}, "option 'tabel': no such option (did you mean 'table'?); there are path,"),
        (
            {"path": "x", "table": "units!"},
            "option 'table': 'units!' is none of messages, units, queues, positions, index",
        ),
        ({"path": "x", "mode": "skip"}, "option 'mode': 'skip' is none of fail, quarantine"),
        ({"path": "x", "splitBytes": "0"}, "option 'splitBytes': '0' is no whole number of at least 1"),
        ({"path": "x", "splitBytes": "many"}, "option 'splitBytes': 'many' is no whole number"),
        ({"path": "x", "checkCrc": "perhaps"}, "option 'checkCrc': 'perhaps' is neither true nor false"),
        ({"path": "x", "columns": "topic,"}, "option 'columns': 'topic,' holds an empty name"),
        (
            {"path": "x", "columns": "topic,boddy"},
            "option 'columns': no column 'boddy' (did you mean 'body'?); there are topic,",
        ),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        schema_of(read_options(options))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("boddy", StringType()), "schema: no column 'boddy'"),
        (StructField("topic", LongType()), "schema: column 'topic' is of type string, not bigint"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(field: StructField, complaint: str) -> None:
    with pytest.raises(InvalidOption, match=complaint):
        MessageReader(read_options({"path": "x"}), StructType([field]))


def test_a_schema_in_quarantine_needs_the_column_of_damage() -> None:
    with pytest.raises(InvalidOption, match="the column 'damage' belongs to mode=quarantine"):
        MessageReader(
            read_options({"path": "x", "mode": "quarantine"}), StructType([StructField("topic", StringType())])
        )
