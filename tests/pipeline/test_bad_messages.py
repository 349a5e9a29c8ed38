"""Messages that are not what they say, and topics with odd names: each is a row in the result, and ends no job."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import lz4.frame
import pyarrow.dataset as dataset
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from quarry_mq.cli.pipeline.session import _verdict
from quarry_mq.cli.pipeline.stats import print_statistics
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.pipeline.export import BodyForm, Selection, export
from quarry_mq.pipeline.export.job import topic_folder
from quarry_mq.pipeline.migrate import migrate
from quarry_mq.pipeline.rebuild import rebuild
from quarry_mq.pipeline.replay import REPLAYED_FROM, Target, replay
from quarry_mq.pipeline.stats import Wanted as Counted
from quarry_mq.pipeline.stats import as_document, report_html, statistics
from quarry_mq.pipeline.verify import verify
from quarry_mq.pipeline.wanted import Wanted
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import BORN_TIMESTAMP
from quarry_mq.protocol.messages.system_flag import COMPRESSED, Compression
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.layout.queue_phase import QueueMode, QueuePhase
from quarry_mq.store.message import Message, PhysicalOffset, QueueOffset
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.record import encode_record
from quarry_mq.store.settings import StoreSettings
from quarry_mq.store.verify import Check
from tests.e2e.broker import Broker
from tests.pipeline.streams import latest, rows_between, stream
from tests.pipeline.tables import plain
from tests.store.assembly import message

SLOW: Final = pytest.mark.slow
SENT_BY_GRPC: Final = {BORN_TIMESTAMP: "1700000000000"}
BODY: Final = b"a body " * 40
GOOD: Final[list[tuple[bytes, int, dict[str, str]]]] = [
    (BODY, 0, {}),
    (gzip.compress(BODY), COMPRESSED, SENT_BY_GRPC),
    (zlib.compress(BODY), COMPRESSED | Compression.ZLIB, {}),
    (lz4.frame.compress(BODY), COMPRESSED | Compression.LZ4, {}),
]
BAD: Final[list[tuple[bytes, int, dict[str, str]]]] = [
    (b"marked and not compressed", COMPRESSED, SENT_BY_GRPC),
    (lz4.frame.compress(BODY)[:-9], COMPRESSED | Compression.LZ4, {}),
    (BODY, COMPRESSED | 0x600, {}),
]
ODD_TOPICS: Final = (
    *("007", "123", "1e5", "true", "null", "__HIVE_DEFAULT_PARTITION__", "2026-11-21", "Orders", "orders"),
    *("%RETRY%a|b", "%41", "a=b", "größe", "x" * 127, "%RETRY%" + "%" * 110, "y" * 250),
)


def fill(root: Path, messages: list[Message]) -> None:
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    for each in messages:
        store.messages.append([each])
    store.messages.dispatch(store.messages.flush())
    store.close()


def mixed() -> list[Message]:
    return [
        message("orders", 0, body, UNIQ_KEY=f"M{number}", **properties)._replace(system_flag=flag)
        for number, (body, flag, properties) in enumerate([*GOOD, *BAD, *GOOD])
    ]


def rows_of(place: Path) -> list[dict[str, Any]]:
    table = dataset.dataset(place, format="parquet", partitioning="hive", ignore_prefixes=["_", "."]).to_table()
    return sorted(table.to_pylist(), key=lambda row: row["phyOffset"])


@pytest.mark.slow
@pytest.mark.parametrize("form", [BodyForm.PLAIN, BodyForm.TEXT, BodyForm.BASE64])
def test_an_export_gives_every_message_and_says_which_has_no_body(
    spark: SparkSession, tmp_path: Path, form: BodyForm
) -> None:
    fill(tmp_path / "store", mixed())
    done = export(spark, PosixDisk(), tmp_path / "store", str(tmp_path / "out"), Selection(body=form))
    rows = rows_of(tmp_path / "out")
    wanted = {BodyForm.PLAIN: BODY, BodyForm.TEXT: BODY.decode(), BodyForm.BASE64: base64.b64encode(BODY).decode()}[
        form
    ]
    assert [row["body"] for row in rows] == [wanted] * 4 + [None] * 3 + [wanted] * 4
    problems = [row["bodyProblem"] for row in rows]
    assert [each is None for each in problems] == [True] * 4 + [False] * 3 + [True] * 4
    assert [name in str(each) for name, each in zip(("(zlib)", "(lz4)", "(unknown)"), problems[4:7], strict=True)] == [
        True
    ] * 3
    assert (done.messages, done.without_body, done.first_without_body) == (11, 3, rows[4]["phyOffset"])
    assert [row["sysFlag"] for row in rows] == [flag for _, flag, _ in [*GOOD, *BAD, *GOOD]], "as stored"


def arrived(broker: Broker, topic: str) -> list[dict[str, Any]]:
    reader = stream(broker, topic)
    try:
        start = reader.initialOffset()
        return [plain(row) for row in rows_between(reader, start, latest(reader, start))]
    finally:
        reader.stop()


@pytest.mark.slow
def test_a_replay_sends_what_it_can_and_names_the_rest(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    refused = [
        message("orders", 0, b"", UNIQ_KEY="empty"),
        message("orders", 0, b"x", UNIQ_KEY="tag", TAGS="a|b"),
        message("orders", 0, b"x", UNIQ_KEY="group", __SHARDINGKEY="g" * 64),
        message("orders", 0, b"x", UNIQ_KEY="control", colour="a\x1bb"),
    ]
    fill(tmp_path / "log", [*mixed(), *refused, message("orders", 0, b"last", UNIQ_KEY="last")])
    options = {"endpoints": broker.endpoint}
    done = replay(spark, PosixDisk(), tmp_path / "log", Target(options=options, topic="again"), Wanted())
    copies = sorted(arrived(broker, "again"), key=lambda row: int(row["properties"][REPLAYED_FROM].split("/")[2]))
    sent = [int(row["properties"][REPLAYED_FROM].split("/")[2]) for row in copies]
    places = dict(done.first_refused)
    named = [int(place.split("/")[2]) for place in places]
    assert sorted(sent + named) == list(range(16)), "each message once, sent or named"
    assert {4, 5, 6, 12, 13, 14} <= set(named)
    assert (done.messages, done.refused) == (len(sent), len(named))
    assert [row["body"] for row in copies if int(row["properties"][REPLAYED_FROM].split("/")[2]) < 11] == [BODY] * 8
    assert copies[-1]["body"] == b"last"
    assert places["orders/0/4"].startswith("marked as compressed (zlib)")
    assert "tag" in places["orders/0/12"]


@pytest.mark.slow
def test_a_replay_that_may_not_send_ends_with_the_reason(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    """Only what is wrong with one message is a row: a broker that is away ends it."""
    fill(tmp_path / "log", [message("orders", 0, b"x", UNIQ_KEY="M")])
    away = Target(options={"endpoints": "127.0.0.1:1", "timeoutMs": "100"}, topic="again")
    with pytest.raises(PySparkException) as raised:
        replay(spark, PosixDisk(), tmp_path / "log", away, Wanted())
    status, text = _verdict(str(raised.value))
    assert status == Exit.COULD_NOT_RUN
    assert "127.0.0.1:1" in text


@pytest.mark.slow
def test_the_cause_of_a_workers_error_is_told(spark: SparkSession) -> None:
    def fail(_rows: object) -> object:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("offset 7: what is wrong") from error

    with pytest.raises(PySparkException) as raised:
        spark.range(3).mapInArrow(fail, "id long").collect()  # type: ignore[arg-type]
    assert _verdict(str(raised.value)) == (Exit.COULD_NOT_RUN, "ValueError: offset 7: what is wrong")
    with pytest.raises(PySparkException) as overflow:
        spark.sql("select timestamp_millis(9223372036854775807)").collect()
    assert "exception was thrown" not in _verdict(str(overflow.value))[1].lower()


@pytest.mark.slow
def test_topics_with_odd_names_come_back_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "store", [message(topic, 0, topic.encode(), UNIQ_KEY="M") for topic in ODD_TOPICS])
    place = tmp_path / "out"
    assert export(spark, PosixDisk(), tmp_path / "store", str(place), Selection()).messages == len(ODD_TOPICS)
    back = spark.read.parquet(str(place)).select("topic", "body").collect()
    assert sorted((row["topic"], row["body"].decode()) for row in back) == sorted((each, each) for each in ODD_TOPICS)
    files = [each for each in place.rglob("*.parquet") if "_quarry" not in each.parts]
    assert len(files) == len(ODD_TOPICS)
    numeric = spark.read.parquet(str(place)).filter(sql.col("topic") == "007").count()
    assert numeric == 1


def test_folders_of_topics_are_the_topics_unless_no_folder_can_be(spark: SparkSession) -> None:
    names = [(each,) for each in ODD_TOPICS]
    folders = [row[0] for row in spark.createDataFrame(names, "topic string").select(topic_folder()).collect()]
    assert len(set(folders)) == len(ODD_TOPICS)
    assert folders[:-2] == list(ODD_TOPICS[:-2])
    assert all(len(each) < 100 for each in folders[-2:])


@pytest.mark.slow
@pytest.mark.parametrize("layout", [1, 2])
def test_an_export_of_an_older_layout_goes_on_in_it(spark: SparkSession, tmp_path: Path, layout: int) -> None:
    fill(tmp_path / "store", mixed())
    place, selection = tmp_path / "out", Selection(body=BodyForm.PLAIN)
    export(spark, PosixDisk(), tmp_path / "store", str(place), selection)
    kept = place / "_quarry" / "selection.json"
    fields = json.loads(kept.read_text())
    assert fields.pop("layout") == 3
    if layout > 1:
        fields["layout"] = layout
    kept.write_text(json.dumps(fields))
    kept.with_name(".selection.json.crc").unlink()
    before = set(place.rglob("*.parquet"))
    fill(tmp_path / "store", mixed())
    done = export(spark, PosixDisk(), tmp_path / "store", str(place), selection, goes_on=True)
    assert (done.messages, done.without_body) == (11, 3)
    new = set(place.rglob("*.parquet")) - before
    assert {each.relative_to(place).parts[0] for each in new} == {"topic=orders"}
    added = dataset.dataset([str(each) for each in new], format="parquet")
    assert added.count_rows() == 11
    assert str(added.schema.field("storeTimestamp").type) == "int64"
    later = {"topicName", "bodyProblem", "topic"} & set(added.schema.names)
    assert later == (set() if layout == 1 else {"topicName", "bodyProblem"})


# -- damage


def damaged(root: Path) -> Path:
    """A store whose fourth of eleven messages does not match its checksum."""
    fill(root, mixed())
    segment = root / "commitlog" / f"{0:020}"
    octets = segment.read_bytes()
    with segment.open("r+b") as file:
        file.seek(octets.index(lz4.frame.compress(BODY)) + 9)
        file.write(b"\xff")
    return segment


@pytest.mark.slow
@pytest.mark.parametrize("goes_on", [False, pytest.param(True, marks=SLOW)])
def test_an_export_gives_what_lies_beside_damage(spark: SparkSession, tmp_path: Path, *, goes_on: bool) -> None:
    segment = damaged(tmp_path / "store")
    selection = Selection(topics=("orders",), body=BodyForm.NONE)
    done = export(spark, PosixDisk(), tmp_path / "store", str(tmp_path / "out"), selection)
    assert (done.messages, done.damage.count) == (10, 1)
    assert str(segment) in done.damage.first[0]
    assert "CRC" in done.damage.first[0]
    assert len(rows_of(tmp_path / "out")) == 10
    if goes_on:
        again = export(spark, PosixDisk(), tmp_path / "store", str(tmp_path / "out"), selection, goes_on=True)
        assert (again.messages, again.damage.count) == (0, 0)
        assert len(rows_of(tmp_path / "out")) == 10


@pytest.mark.slow
def test_a_replay_sends_each_message_beside_damage_once(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    damaged(tmp_path / "log")
    options = {"endpoints": broker.endpoint}
    done = replay(spark, PosixDisk(), tmp_path / "log", Target(options=options, topic="beside"), Wanted())
    assert (done.messages, done.refused, done.damage.count) == (7, 3, 1)
    assert len(arrived(broker, "beside")) == 7


# -- records that are whole, and odd in each field


def odd_records() -> list[tuple[Message, int, bytes]]:
    """Messages, the ms when they were stored, and their properties, as foreign brokers and flipped bits leave them."""
    now_ms, last = 1_700_000_000_000, 2**63 - 1
    made = [(message(body=b"none")._replace(system_flag=COMPRESSED), now_ms, b"UNIQ_KEY\x01A\x02KEYS\x01k1 k2\x02")]
    made += [
        (message()._replace(born_timestamp_ms=born), now_ms, b"UNIQ_KEY\x01%d\x02" % number)
        for number, born in enumerate((0, -1, last, -last - 1, now_ms * 1000, now_ms * 1_000_000))
    ]
    made += [(message(), stored, b"KEYS\x01late\x02") for stored in (0, last, now_ms * 1000, now_ms * 1_000_000)]
    made += [
        (message(), now_ms, raw)
        for raw in (
            b"UNIQ_KEY\x01\xff\xfe\x02KEYS\x01\xc3 \xe2\x82\x02TAGS\x01\xff\x02\xff\x01x\x02",
            b"UNIQ_KEY\x01\xed\xa0\x80\x02KEYS\x01\xed\xa0\x80 \xed\xb0\x80\x02TAGS\x01\xed\xa0\x80\x02",
            b"UNIQ_KEY\x01" + b"u" * 16_000 + b"\x02KEYS\x01" + b"k" * 16_600 + b"\x02",
            b"KEYS\x01" + b" ".join(b"%d" % number for number in range(6000)) + b"\x02",
            b"".join(b"n%d\x01v\x02" % number for number in range(3000)),
            b"UNIQ_KEY\x01\x00x\x02KEYS\x01\x00 \x00\x02TAGS\x01\x00\x02",
            b"\x01\x01\x02\x02\x01\x02abc\x01\x02",
            b"UNIQ_KEY\x01without an end",
            b"TAGS\x01a\x02TAGS\x01b\x02UNIQ_KEY\x011\x02UNIQ_KEY\x012\x02",
            *(
                b"INNER_MULTI_DISPATCH\x01%LMQ%" + name + b"\x02INNER_MULTI_QUEUE_OFFSET\x01" + offset + b"\x02"
                for name, offset in (
                    (b"a", b"9" * 19),
                    (b"b", b"-1"),
                    (b"\xff", b"5"),
                    (b"/../c", b"5"),
                    (b"x" * 300, b"0"),
                )
            ),
        )
    ]
    made += [
        (message("SCHEDULE_TOPIC_XXXX", 3), now_ms, b"DELAY\x01" + level + b"\x02REAL_TOPIC\x01orders\x02")
        for level in (b"abc", b"-5", b"9" * 20)
    ]
    made += [(message(topic), now_ms, b"") for topic in ("gr\u00f6\u00dfe\u202e\x07", "x" * 255, "../../etc")]
    made.append((message("orders", 2**31 - 1), now_ms, b""))
    made.append((message(body=b"\xff\xfe\x00"), now_ms, b"UNIQ_KEY\x01last\x02"))
    return made


def write_odd(root: Path) -> int:
    """A store of nothing but a log of these. Returns how many they are."""
    log, counts, records = bytearray(), Counter[tuple[str, int]](), odd_records()
    for each, stored_ms, raw in records:
        queue = each.topic, each.queue_number
        at = QueueOffset(counts[queue]), PhysicalOffset(len(log)), stored_ms
        log += encode_record(each, *at, raw)
        counts[queue] += 1
    directory = StorePaths(root).commit_log
    PosixDisk().make_directories(directory)
    segment = PosixDisk().create_segment(directory / segment_name(PhysicalOffset(0)), 1 << 22)
    segment.write(0, bytes(log))
    segment.close()
    return len(records)


@pytest.mark.slow
def test_odd_records_end_no_rebuild_and_no_verification(spark: SparkSession, tmp_path: Path) -> None:
    count = write_odd(tmp_path)
    made = rebuild(spark, PosixDisk(), tmp_path, with_index=True)
    assert made.queues.entries >= count
    assert made.index is not None
    assert made.index.items > 6000
    counts = verify(spark, PosixDisk(), tmp_path).counts
    assert not {check for check, each in counts.items() if each.differences}
    assert counts[Check.LOG].checked == count


@pytest.mark.slow
def test_odd_records_end_no_statistics(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = write_odd(tmp_path)
    found = statistics(spark, PosixDisk(), tmp_path, Counted())
    assert (found.volume.messages, found.damage.count) == (count, 0)
    print_statistics(found)
    assert "\x07" not in capsys.readouterr().out
    assert json.dumps(as_document(found)).isascii()
    report_html(found, datetime(2026, 1, 1, tzinfo=UTC)).encode()


@pytest.mark.slow
def test_odd_records_end_no_migration(spark: SparkSession, tmp_path: Path) -> None:
    write_odd(tmp_path)
    settings = StoreSettings(root=tmp_path, segment_size=1 << 22, queue_mode=QueueMode.FILE)
    open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None).close()
    done = migrate(spark, PosixDisk(), SystemClock(), tmp_path, asked_by="a test", report=lambda _: None)
    assert done.phase is QueuePhase.ROCKSDB
