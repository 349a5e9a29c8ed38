"""A tiered index made on Spark, beside one that a broker filled while the log grew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from quarry_mq.pipeline.index import IndexWish, build_index
from quarry_mq.pipeline.index.files import Stretch, plan_files
from quarry_mq.protocol.clock import DAY_MS, SystemClock
from quarry_mq.store.errors import StoreLocked
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.index.message_index import IndexState
from quarry_mq.store.index.opening import TIERED_ROW
from quarry_mq.store.index.tiered.layout import SPAN_MAX_MS
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.settings import IndexSettings, StoreSettings
from quarry_mq.store.state.identity import StoreIdentity
from quarry_mq.store.verify import Check
from tests.conftest import GoldenStore
from tests.pipeline.tables import Row, messages, table
from tests.verify.faults import fill_everything, segments
from tests.verify.stores import send, state_rows, verified

ITEMS_PER_FILE = 100


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fill_everything(tmp_path / "store")
    return tmp_path / "store"


def opened(root: Path) -> OpenStore:
    index = IndexSettings(tiered=True, tiered_slots=11, tiered_items=ITEMS_PER_FILE)
    return open_store(
        StoreSettings(root=root, segment_size=64 * 1024, index=index),
        disk=PosixDisk(),
        clock=SystemClock(),
        report=lambda _: None,
    )


def items(root: Path) -> list[Row]:
    rows = [row for row in table(root, table="index") if row["index"] == "tiered"]
    return sorted(
        ({name: row[name] for name in ("keyHash", "phyOffset", "storeTimestamp")} for row in rows),
        key=lambda row: (row["phyOffset"], row["keyHash"]),
    )


def stages(root: Path) -> dict[str, int]:
    folder = StorePaths(root).key_index
    return {each.name: len(list(each.iterdir())) for each in folder.iterdir() if each.is_dir() and any(each.iterdir())}


@pytest.mark.parametrize("split_bytes", [30_000, 64 << 20])
def test_the_index_is_what_a_broker_makes_of_the_log(spark: SparkSession, store: Path, split_bytes: int) -> None:
    before = items(store)
    wish = IndexWish(slots=11, items=ITEMS_PER_FILE)
    made = build_index(spark, PosixDisk(), store, wish, split_bytes=split_bytes)
    assert items(store) == before
    assert (made.items, made.files) == (len(before), -(-len(before) // ITEMS_PER_FILE))
    assert stages(store) == {"compacted": made.files - 1, "filling": 1}
    assert made.aside is not None
    assert verified(store).agrees


def test_a_broker_goes_on_where_it_ends(spark: SparkSession, store: Path) -> None:
    made = build_index(spark, PosixDisk(), store, IndexWish(slots=11, items=ITEMS_PER_FILE))
    running = opened(store)
    (follower,) = running.messages.indexes.followers
    assert follower.written_up_to == made.up_to, "nothing is read again"
    assert follower.file_count == made.files
    send(running, 5)
    running.messages.flush()
    running.messages.dispatch(running.messages.appended_up_to)
    running.close()
    report = verified(store)
    assert report.differences == []
    assert report.counts[Check.INDEX].checked > made.items


@pytest.mark.slow
def test_a_store_of_rocketmq_gets_one(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("file-clean") / "store"
    made = build_index(spark, PosixDisk(), root, IndexWish(slots=1_000, items=5_000), split_bytes=500_000)
    assert (made.files, made.aside) == (2, None)
    found = {(row["keyHash"], row["phyOffset"]) for row in items(root)}
    theirs = {(row["keyHash"], row["phyOffset"]) for row in table(root, table="index") if row["index"] == "hash"}
    assert found < theirs, "which has tags, too"


@pytest.mark.slow
def test_only_a_range_of_times(spark: SparkSession, golden_copy: GoldenStore) -> None:
    root = golden_copy("rocks-clean") / "store"
    rows = sorted(messages(root, columns="phyOffset,storeTimestamp"), key=lambda row: row["phyOffset"])
    from_ms, to_ms = rows[1_000]["storeTimestamp"], rows[3_000]["storeTimestamp"]
    made = build_index(spark, PosixDisk(), root, IndexWish(from_ms=from_ms, to_ms=to_ms), split_bytes=300_000)
    assert made.begin == next(row["phyOffset"] for row in rows if row["storeTimestamp"] >= from_ms)
    assert made.up_to == next(row["phyOffset"] for row in rows if row["storeTimestamp"] > to_ms)
    places = [row["phyOffset"] for row in items(root)]
    assert made.begin <= min(places) <= max(places) < made.up_to
    with state_rows(root) as engine:
        row = StoreIdentity(engine, root).index_row(TIERED_ROW)
    assert row is not None
    assert IndexState.unpack(row).up_to == made.up_to
    later = build_index(spark, PosixDisk(), root, IndexWish(from_ms=rows[-1]["storeTimestamp"] + 1))
    assert (later.items, later.files) == (0, 0)
    assert later.begin == later.up_to


def test_damage_in_the_log_ends_it_and_leaves_the_index(spark: SparkSession, store: Path) -> None:
    before = items(store)
    segment = segments(store)[1]
    octets = bytearray(segment.read_bytes())
    octets[octets.index(b"order 40 ")] ^= 1
    segment.write_bytes(octets)
    with pytest.raises(PySparkException, match=f"{segment.name}.*the body does not match its CRC"):
        build_index(spark, PosixDisk(), store)
    assert items(store) == before


def test_a_store_that_a_broker_runs_on_is_refused(spark: SparkSession, store: Path) -> None:
    lock = PosixDisk().lock(StorePaths(store).lock)
    with pytest.raises(StoreLocked):
        build_index(spark, PosixDisk(), store)
    lock.release()


@given(stretches=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60)), max_size=20), items_max=st.integers(1, 40))
def test_files_hold_all_items_in_order_and_never_too_many_or_too_many_days(
    stretches: list[tuple[int, int]], items_max: int
) -> None:
    days = 0
    given_: list[Stretch] = []
    for number, (count, gap) in enumerate(stretches):
        days += gap
        given_.append(Stretch(Path(f"{number}"), 3, 3 + count, days * DAY_MS + 5))
    plans = plan_files(given_, items_max)
    spread = [(each.file, row) for plan in plans for each in plan.stretches for row in range(each.begin, each.end)]
    assert spread == [(each.file, row) for each in given_ for row in range(each.begin, each.end)]
    for plan in plans:
        assert 0 < plan.items <= items_max
        # the last item is less than a day behind the begin of its stretch
        assert plan.stretches[-1].time_ms + DAY_MS - plan.stretches[0].time_ms <= SPAN_MAX_MS
    assert [plan.is_last for plan in plans] == [number == len(plans) for number in range(1, len(plans) + 1)]
