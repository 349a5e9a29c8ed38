"""Every key-value engine keeps its contract (kv/engine.py). Runs on RocksDB, on the engine in memory, on one that
records, and on the benchmark's engine on LMDB.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.peers.lmdb_engine import LmdbEngine
from quarry_mq.kv import (
    EngineClosed,
    FamilyOptions,
    KeyRange,
    KeyValueEngine,
    KvError,
    RocksEngine,
    Snapshot,
    WriteBatch,
)
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.kv.recording import Change, RecordingEngine

ALL = KeyRange(b"", None)
FAMILIES = ("first", "second")
SMALL = FamilyOptions(memtable_bytes=1 << 20, block_cache_bytes=1 << 20)


def open_rocks(directory: Path, *, create: bool = True) -> RocksEngine:
    return RocksEngine.open(directory, dict.fromkeys(FAMILIES, SMALL), create=create, write_ahead_log=False)


class NoRecorder:
    """A recorder that keeps nothing."""

    def stage(self, changes: Sequence[Change], batch: WriteBatch) -> None: ...

    def written(self) -> None: ...


def open_lmdb(directory: Path) -> LmdbEngine:
    pytest.importorskip("lmdb")
    return LmdbEngine(directory, FAMILIES)


@pytest.fixture(params=["memory", "rocks", "recording", "lmdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueEngine]:
    opened: dict[str, Callable[[Path], KeyValueEngine]] = {"rocks": open_rocks, "lmdb": open_lmdb}
    made = opened[request.param](tmp_path / "db") if request.param in opened else MemoryEngine(FAMILIES)
    yield RecordingEngine(made, NoRecorder()) if request.param == "recording" else made
    made.close()


def fill(engine: KeyValueEngine, family: str, pairs: dict[bytes, bytes]) -> None:
    batch = engine.batch()
    for key, value in pairs.items():
        batch.put(engine.family(family), key, value)
    engine.write(batch)


def numbered(count: int) -> dict[bytes, bytes]:
    return {b"%05d" % number: b"value %d" % number for number in range(count)}


def test_families_are_separate_maps(engine: KeyValueEngine) -> None:
    fill(engine, "first", {b"key": b"1"})
    fill(engine, "second", {b"key": b"2"})
    assert engine.family("first").get(b"key") == b"1"
    assert engine.family("second").get(b"key") == b"2"
    assert engine.family("second").name == "second"


def test_a_family_it_was_not_opened_with_is_a_key_error(engine: KeyValueEngine) -> None:
    with pytest.raises(KeyError):
        engine.family("third")


def test_missing_keys_and_empty_values_differ(engine: KeyValueEngine) -> None:
    fill(engine, "first", {b"empty": b""})
    assert engine.family("first").get(b"empty") == b""
    assert engine.family("first").get(b"missing") is None


def test_get_many_keeps_the_order_asked_for(engine: KeyValueEngine) -> None:
    fill(engine, "first", numbered(3))
    assert engine.family("first").get_many([b"00002", b"none", b"00000", b"00002"]) == [
        b"value 2",
        None,
        b"value 0",
        b"value 2",
    ]
    assert engine.family("first").get_many([]) == []


@pytest.mark.parametrize(
    ("keys", "limit", "reverse", "expected"),
    [
        (ALL, None, False, [0, 1, 2, 3, 4]),
        (ALL, None, True, [4, 3, 2, 1, 0]),
        (ALL, 2, False, [0, 1]),
        (ALL, 2, True, [4, 3]),
        (ALL, 0, False, []),
        (KeyRange(b"00001", b"00003"), None, False, [1, 2]),
        (KeyRange(b"00001", b"00003"), None, True, [2, 1]),
        (KeyRange(b"00001", b"00003"), 1, True, [2]),
        (KeyRange(b"000015", None), None, False, [2, 3, 4]),
        (KeyRange(b"", b"00002"), 9, True, [1, 0]),
        (KeyRange(b"00003", b"00003"), None, False, []),
        (KeyRange(b"00004", b"00001"), None, True, []),
        (KeyRange(b"9", None), None, False, []),
        (KeyRange(b"9", None), None, True, []),
    ],
)
def test_scan(engine: KeyValueEngine, keys: KeyRange, limit: int | None, reverse: bool, expected: list[int]) -> None:
    fill(engine, "first", numbered(5))
    fill(engine, "second", numbered(9))
    found = engine.family("first").scan(keys, limit=limit, reverse=reverse)
    assert found == [(b"%05d" % number, b"value %d" % number) for number in expected]
    if limit is not None and not reverse:
        assert engine.family("first").take(keys, limit) == found


@pytest.mark.parametrize("reverse", [False, True])
def test_iterate_gives_everything_in_order(engine: KeyValueEngine, reverse: bool) -> None:
    pairs = numbered(3_000)
    fill(engine, "first", pairs)
    assert list(engine.family("first").iterate(ALL, reverse=reverse)) == sorted(pairs.items(), reverse=reverse)
    assert list(engine.family("second").iterate(ALL, reverse=reverse)) == []


def test_iterate_does_not_see_later_writes(engine: KeyValueEngine) -> None:
    fill(engine, "first", numbered(100))
    pairs = engine.family("first").iterate(ALL)
    next(pairs)
    fill(engine, "first", {b"00050": b"later", b"99999": b"later"})
    assert b"later" not in [value for _, value in pairs]


def test_a_snapshot_covers_all_families_at_one_moment(engine: KeyValueEngine) -> None:
    fill(engine, "first", {b"a": b"1"})
    fill(engine, "second", {b"a": b"1"})
    with engine.snapshot() as snapshot:
        batch = engine.batch()
        batch.put(engine.family("first"), b"a", b"2")
        batch.delete(engine.family("second"), b"a")
        engine.write(batch)
        assert engine.family("first").scan(ALL, snapshot=snapshot) == [(b"a", b"1")]
        assert list(engine.family("second").iterate(ALL, snapshot=snapshot)) == [(b"a", b"1")]
    assert engine.family("first").scan(ALL) == [(b"a", b"2")]
    with pytest.raises(EngineClosed):
        engine.family("first").scan(ALL, snapshot=snapshot)


def test_a_batch_applies_in_order(engine: KeyValueEngine) -> None:
    first = engine.family("first")
    batch = engine.batch()
    batch.put(first, b"a", b"1")
    batch.put(first, b"b", b"1")
    batch.delete_range(first, KeyRange(b"a", b"b"))
    batch.delete(first, b"b")
    batch.put_all(first, [(b"b", b"3"), (b"b", b"2")])
    batch.put_all(engine.family("second"), iter([(b"b", b"3"), (b"c", b"4"), (b"d", b"5")]))
    batch.delete_all(engine.family("second"), iter([b"c", b"d", b"missing"]))
    assert len(batch) == 12
    assert first.scan(ALL) == [], "nothing before write"
    engine.write(batch)
    assert first.scan(ALL) == [(b"b", b"2")]
    assert engine.family("second").scan(ALL) == [(b"b", b"3")]


def test_an_empty_batch_may_be_written(engine: KeyValueEngine) -> None:
    engine.write(engine.batch())
    assert engine.family("first").scan(ALL) == []


def test_a_batch_is_written_once(engine: KeyValueEngine) -> None:
    batch = engine.batch()
    batch.put(engine.family("first"), b"a", b"1")
    engine.write(batch)
    with pytest.raises(KvError):
        engine.write(batch)
    with pytest.raises(KvError):
        batch.put(engine.family("first"), b"a", b"2")


def test_delete_range_needs_an_end_and_ignores_an_empty_range(engine: KeyValueEngine) -> None:
    fill(engine, "first", numbered(3))
    batch = engine.batch()
    with pytest.raises(ValueError, match="end"):
        batch.delete_range(engine.family("first"), ALL)
    batch.delete_range(engine.family("first"), KeyRange(b"2", b"1"))
    batch.delete_range(engine.family("first"), KeyRange(b"00001", b"00001"))
    engine.write(batch)
    assert len(engine.family("first").scan(ALL)) == 3


def test_a_sync_write_needs_a_write_ahead_log(engine: KeyValueEngine) -> None:
    batch = engine.batch()
    batch.put(engine.family("first"), b"a", b"1")
    with pytest.raises(KvError):
        engine.write(batch, sync=True)
    assert engine.family("first").scan(ALL) == []


def test_flush_of_an_unknown_family_is_a_key_error(engine: KeyValueEngine) -> None:
    engine.flush(["first", "second"])
    with pytest.raises(KeyError):
        engine.flush(["third"])


def test_compaction_changes_nothing_that_is_read(engine: KeyValueEngine) -> None:
    fill(engine, "first", numbered(100))
    batch = engine.batch()
    batch.delete_range(engine.family("first"), KeyRange(b"00010", b"00090"))
    engine.write(batch)
    before = engine.family("first").scan(ALL)
    engine.compact(engine.family("first"), ALL)
    assert engine.family("first").scan(ALL) == before
    assert len(before) == 20


def test_tables_written_apart_are_taken_over(engine: KeyValueEngine, tmp_path: Path) -> None:
    fill(engine, "first", {b"00001": b"old", b"other": b"kept"})
    tables = [tmp_path / "a.sst", tmp_path / "b.sst"]
    pairs = sorted(numbered(20).items())
    assert engine.write_table(engine.family("first"), tables[0], pairs[:10]) == 10
    assert engine.write_table(engine.family("first"), tables[1], pairs[10:]) == 10
    engine.ingest(engine.family("first"), tables)
    assert engine.family("first").scan(ALL) == [*pairs, (b"other", b"kept")]
    assert engine.family("second").scan(ALL) == []
    assert all(table.exists() for table in tables)


@pytest.mark.parametrize("pairs", [[], [(b"b", b""), (b"a", b"")], [(b"a", b""), (b"a", b"")]])
def test_a_table_needs_ascending_pairs(
    engine: KeyValueEngine, tmp_path: Path, pairs: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(KvError):
        engine.write_table(engine.family("first"), tmp_path / "bad.sst", pairs)


def test_a_checkpoint_is_a_copy_with_what_was_not_flushed(engine: KeyValueEngine, tmp_path: Path) -> None:
    fill(engine, "first", numbered(10))
    fill(engine, "second", {b"a": b"1"})
    copy = tmp_path / "copies" / "one"
    copy.parent.mkdir()
    engine.checkpoint(copy)
    fill(engine, "first", {b"later": b""})
    opened: KeyValueEngine
    if isinstance(engine, RocksEngine):
        opened = open_rocks(copy, create=False)
    elif isinstance(engine, LmdbEngine):
        opened = open_lmdb(copy)
    else:
        opened = MemoryEngine.from_checkpoint(copy)
    assert opened.family("first").scan(ALL) == sorted(numbered(10).items())
    assert opened.family("second").scan(ALL) == [(b"a", b"1")]
    opened.close()
    with pytest.raises(KvError):
        engine.checkpoint(copy)


def test_statistics_name_family_and_stat(engine: KeyValueEngine) -> None:
    fill(engine, "first", numbered(10))
    stats = engine.statistics()
    assert stats["first.keys_estimate"] == 10
    assert stats["second.keys_estimate"] == 0
    assert all(name.partition(".")[0] in FAMILIES for name in stats if "." in name)


USES: list[tuple[str, Callable[[KeyValueEngine, WriteBatch, Snapshot, Iterator[tuple[bytes, bytes]]], object]]] = [
    ("family", lambda engine, batch, snapshot, pairs: engine.family("first")),
    ("batch", lambda engine, batch, snapshot, pairs: engine.batch()),
    ("write", lambda engine, batch, snapshot, pairs: engine.write(batch)),
    ("flush", lambda engine, batch, snapshot, pairs: engine.flush(["first"])),
    ("flush nothing", lambda engine, batch, snapshot, pairs: engine.flush([])),
    ("snapshot", lambda engine, batch, snapshot, pairs: engine.snapshot()),
    ("statistics", lambda engine, batch, snapshot, pairs: engine.statistics()),
    ("checkpoint", lambda engine, batch, snapshot, pairs: engine.checkpoint(Path("/nonexistent/checkpoint"))),
    ("iterator in flight", lambda engine, batch, snapshot, pairs: next(pairs)),
]


@pytest.mark.parametrize("use", [use for _, use in USES], ids=[name for name, _ in USES])
def test_use_after_close_is_an_error_not_a_crash(
    engine: KeyValueEngine,
    use: Callable[[KeyValueEngine, WriteBatch, Snapshot, Iterator[tuple[bytes, bytes]]], object],
) -> None:
    """rmq#9875, rmq#9888, rmq#9783: the process died when a request met a closed database."""
    fill(engine, "first", numbered(100))
    batch, snapshot = engine.batch(), engine.snapshot()
    pairs = engine.family("first").iterate(ALL)
    next(pairs)
    engine.close()
    engine.close()
    with pytest.raises(EngineClosed):
        use(engine, batch, snapshot, pairs)


def test_parts_of_a_closed_engine_are_closed_too(engine: KeyValueEngine, tmp_path: Path) -> None:
    fill(engine, "first", numbered(100))
    family, batch, snapshot = engine.family("first"), engine.batch(), engine.snapshot()
    engine.close()
    for use in (
        lambda: family.get(b"00001"),
        lambda: family.get_many([b"00001"]),
        lambda: family.scan(ALL),
        lambda: family.scan(KeyRange(b"b", b"a")),
        lambda: family.take(ALL, 1),
        lambda: family.scan(ALL, snapshot=snapshot),
        lambda: family.iterate(ALL),
        lambda: batch.put(family, b"a", b"b"),
        lambda: batch.put_all(family, [(b"a", b"b")]),
        lambda: batch.delete(family, b"a"),
        lambda: batch.delete_all(family, [b"a"]),
        lambda: batch.delete_range(family, KeyRange(b"a", b"b")),
        lambda: engine.compact(family, ALL),
        lambda: engine.write_table(family, tmp_path / "t.sst", [(b"a", b"")]),
        lambda: engine.ingest(family, []),
    ):
        with pytest.raises(EngineClosed):
            use()
    assert family.name == "first"
    snapshot.close()


KEYS = st.binary(min_size=1, max_size=3)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(FAMILIES), KEYS, st.binary(max_size=4)),
        st.tuples(st.just("delete"), st.sampled_from(FAMILIES), KEYS, st.just(b"")),
        st.tuples(st.just("delete_range"), st.sampled_from(FAMILIES), KEYS, KEYS),
        st.tuples(st.sampled_from(["write", "flush", "compact"]), st.just("first"), st.just(b""), st.just(b"")),
    ),
    max_size=40,
)


@given(operations=OPERATIONS, start=KEYS, end=st.none() | KEYS, limit=st.none() | st.integers(0, 5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_agrees_with_a_dict(
    engine: KeyValueEngine,
    operations: list[tuple[str, str, bytes, bytes]],
    start: bytes,
    end: bytes | None,
    limit: int | None,
) -> None:
    clear = engine.batch()
    for name in FAMILIES:
        clear.delete_range(engine.family(name), KeyRange(b"", b"\xff" * 8))
    engine.write(clear)
    model: dict[str, dict[bytes, bytes]] = {name: {} for name in FAMILIES}
    pending = {name: dict(each) for name, each in model.items()}
    batch = engine.batch()
    for kind, name, key, value in [*operations, ("write", "", b"", b"")]:
        match kind:
            case "put":
                batch.put(engine.family(name), key, value)
                pending[name][key] = value
            case "delete":
                batch.delete(engine.family(name), key)
                pending[name].pop(key, None)
            case "delete_range":
                batch.delete_range(engine.family(name), KeyRange(key, value))
                pending[name] = {each: kept for each, kept in pending[name].items() if not key <= each < value}
            case "write":
                engine.write(batch)
                batch = engine.batch()
                model = {each: dict(pairs) for each, pairs in pending.items()}
            case "flush":
                engine.flush(FAMILIES)
            case "compact":
                engine.compact(engine.family(name), ALL)
    for name in FAMILIES:
        inside = sorted((k, v) for k, v in model[name].items() if k >= start and (end is None or k < end))
        keys = KeyRange(start, end)
        family = engine.family(name)
        assert family.scan(keys, limit=limit) == inside[:limit]
        assert family.take(keys, 0 if limit is None else limit) == inside[: limit or 0]
        assert family.scan(keys, limit=limit, reverse=True) == inside[::-1][:limit]
        assert list(family.iterate(keys)) == inside
        assert family.get(start) == model[name].get(start)


def test_iterators_left_after_do_not_outlive_the_engine(engine: KeyValueEngine) -> None:
    """rmq#10912: what a scan needs natively goes with the iterator, or with the engine."""
    fill(engine, "first", numbered(100))
    for _ in range(3):
        next(engine.family("first").iterate(ALL))
    gc.collect()
    kept = engine.family("first").iterate(ALL)
    next(kept)
    engine.close()
    with pytest.raises(EngineClosed):
        next(kept)
