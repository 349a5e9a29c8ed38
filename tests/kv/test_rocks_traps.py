"""The traps of rocksdict and RocksDB that `kv.rocks` guards against, one test or more for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random
from threading import Thread
from time import monotonic, sleep

import pytest

from quarry_mq.kv import (
    EngineClosed,
    EngineCorrupt,
    EngineFull,
    EngineLocked,
    EngineMissing,
    FamilyOptions,
    KeyRange,
    KvError,
    RocksEngine,
    list_families,
)
from quarry_mq.kv.rocks import fail

ALL = KeyRange(b"", None)
SMALL = FamilyOptions(memtable_bytes=1 << 20, block_cache_bytes=1 << 20)
FAMILIES = {"default": SMALL, "offset": SMALL}
ROOT = Path(__file__).resolve().parents[2]


def open_engine(directory: Path, *, create: bool = False, read_only: bool = False) -> RocksEngine:
    return RocksEngine.open(directory, FAMILIES, create=create, read_only=read_only, write_ahead_log=False)


def fill(engine: RocksEngine, family: str, count: int, value: bytes = b"v" * 50) -> None:
    batch = engine.batch()
    batch.put_all(engine.family(family), ((b"%08d" % number, value + b"%d" % number) for number in range(count)))
    engine.write(batch)


def files(directory: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
    }


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A closed database with 20,000 keys in one table of the family `default`."""
    engine = open_engine(tmp_path / "db", create=True)
    fill(engine, "default", 20_000)
    engine.close()
    return tmp_path / "db"


# -- trap 1: damage ends an iteration as if the range ended


def flip_a_bit(table: Path, at: float) -> None:
    data = bytearray(table.read_bytes())
    data[int(len(data) * at)] ^= 0x10
    table.write_bytes(data)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.8])
def test_trap_1_a_flipped_bit_is_reported_by_every_scan(filled: Path, at: float, reverse: bool) -> None:
    flip_a_bit(max(filled.glob("*.sst"), key=lambda path: path.stat().st_size), at)
    engine = open_engine(filled)
    family = engine.family("default")
    with engine.snapshot() as snapshot:
        with pytest.raises(EngineCorrupt, match=r"\.sst"):
            family.scan(ALL, reverse=reverse)
        with pytest.raises(EngineCorrupt):
            _ = family.scan(ALL, reverse=True, limit=20_000) if reverse else family.take(ALL, 20_000)
        with pytest.raises(EngineCorrupt):
            family.scan(ALL, reverse=reverse, snapshot=snapshot)
        for pairs in (family.iterate(ALL, reverse=reverse), family.iterate(ALL, reverse=reverse, snapshot=snapshot)):
            seen: list[tuple[bytes, bytes]] = []
            with pytest.raises(EngineCorrupt):
                seen.extend(pairs)
            assert 0 < len(seen) < 20_000, "what lies before the damage is still read"
    engine.close()


def test_trap_1_a_get_of_a_damaged_block_is_an_error(filled: Path) -> None:
    flip_a_bit(max(filled.glob("*.sst"), key=lambda path: path.stat().st_size), 0.5)
    engine = open_engine(filled)
    damaged = 0
    for number in range(0, 20_000, 50):
        try:
            assert engine.family("default").get(b"%08d" % number) is not None, "damage must not look like absence"
        except EngineCorrupt:
            damaged += 1
    assert damaged > 0
    engine.close()


def test_trap_1_a_scan_that_its_limit_ends_needs_no_healthy_rest(filled: Path) -> None:
    flip_a_bit(max(filled.glob("*.sst"), key=lambda path: path.stat().st_size), 0.8)
    engine = open_engine(filled)
    assert len(engine.family("default").scan(ALL, limit=100)) == 100
    engine.close()


def test_trap_1_a_missing_table_is_damage(filled: Path) -> None:
    max(filled.glob("*.sst"), key=lambda path: path.stat().st_size).unlink()
    with pytest.raises(EngineCorrupt, match=r"\.sst"):
        open_engine(filled)


# -- trap 2: a manual flush covers one family only


CRASHER = """
import os, sys
from pathlib import Path
from quarry_mq.kv import FamilyOptions, RocksEngine

directory, log, flushed = Path(sys.argv[1]), sys.argv[2] == "log", sys.argv[3].split(",")
engine = RocksEngine.open(
    directory, {name: FamilyOptions() for name in ("default", "offset")}, create=True, write_ahead_log=log
)
batch = engine.batch()
for name in ("default", "offset"):
    batch.put(engine.family(name), b"key", b"value")
engine.write(batch, sync=log)
engine.flush([name for name in flushed if name])
os._exit(0)
"""


def after_crash(directory: Path, *, write_ahead_log: bool, flushed: str = "") -> dict[str, bytes | None]:
    """What is left when a process writes one key to each family, flushes some families and dies."""
    subprocess.run(
        [sys.executable, "-c", CRASHER, str(directory), "log" if write_ahead_log else "none", flushed],
        check=True,
        cwd=ROOT,
        timeout=60,
    )
    engine = RocksEngine.open(directory, FAMILIES, create=False, write_ahead_log=write_ahead_log)
    left = {name: engine.family(name).get(b"key") for name in FAMILIES}
    engine.close()
    return left


def test_trap_2_a_flush_covers_exactly_the_families_it_names(tmp_path: Path) -> None:
    left = after_crash(tmp_path / "db", write_ahead_log=False, flushed="default")
    assert left == {"default": b"value", "offset": None}


def test_trap_2_all_families_named_are_flushed(tmp_path: Path) -> None:
    left = after_crash(tmp_path / "db", write_ahead_log=False, flushed="default,offset")
    assert left == {"default": b"value", "offset": b"value"}


def test_without_a_write_ahead_log_only_flushes_survive_the_process(tmp_path: Path) -> None:
    assert after_crash(tmp_path / "db", write_ahead_log=False) == {"default": None, "offset": None}


def test_with_a_write_ahead_log_a_write_survives_the_process(tmp_path: Path) -> None:
    assert after_crash(tmp_path / "db", write_ahead_log=True) == {"default": b"value", "offset": b"value"}


def test_without_a_write_ahead_log_close_flushes(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "db", create=True)
    fill(engine, "offset", 3)
    engine.close()
    engine = open_engine(tmp_path / "db")
    assert len(engine.family("offset").scan(ALL)) == 3
    engine.close()


# -- trap 3: families, handles and iterators keep the database open after close()


def test_trap_3_the_lock_is_free_after_close_whoever_holds_what(tmp_path: Path) -> None:
    """rmq#9418, rmq#9681: handles and iterators left behind."""
    for _ in range(3):
        engine = open_engine(tmp_path / "db", create=True)
        fill(engine, "default", 100)
        family, batch, snapshot = engine.family("default"), engine.batch(), engine.snapshot()
        batch.put_all(engine.family("offset"), [(b"a", b"b")])
        forwards, backwards = family.iterate(ALL), family.iterate(ALL, reverse=True)
        frozen = family.iterate(ALL, snapshot=snapshot)
        for pairs in (forwards, backwards, frozen):
            next(pairs)
        engine.close()
        again = open_engine(tmp_path / "db")
        assert len(again.family("default").scan(ALL)) == 100
        again.close()
        for pairs in (forwards, backwards):
            with pytest.raises(EngineClosed):
                next(pairs)
        with pytest.raises(EngineClosed):
            list(frozen)


def test_trap_3_a_second_open_is_told_of_the_lock(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "db", create=True)
    with pytest.raises(EngineLocked):
        open_engine(tmp_path / "db")
    engine.close()


def test_trap_3_another_process_is_told_of_the_lock(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "db", create=True)
    code = (
        "import sys; from pathlib import Path; from quarry_mq.kv import *\n"
        "try: RocksEngine.open(Path(sys.argv[1]), {'default': FamilyOptions(), 'offset': FamilyOptions()},"
        " create=False, write_ahead_log=False)\n"
        "except EngineLocked: sys.exit(7)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "db")], check=False, cwd=ROOT, timeout=60)
    assert done.returncode == 7
    engine.close()


def test_a_failed_open_leaves_no_lock(tmp_path: Path) -> None:
    open_engine(tmp_path / "db", create=True).close()
    with pytest.raises(KvError, match="offset"):
        RocksEngine.open(tmp_path / "db", {"default": SMALL}, create=False, write_ahead_log=False)
    open_engine(tmp_path / "db").close()


def test_a_disk_without_room_has_an_error_of_its_own(filled: Path) -> None:
    """The engine's own words for it; `tests/hostile` fills a real file system."""
    reason = "No space left on device: While appending to file: /store/quarry/000004.log: No space left on device"
    for status in ("IO error", "Result incomplete"):
        with pytest.raises(EngineFull, match=r"000004\.log"):
            fail(Exception(f"{status}: {reason}"))


def test_an_exceeded_quota_is_no_full_disk(filled: Path) -> None:
    """RocksDB does not get over it: measured with 9.8.4, writes fail until the database is opened again."""
    with pytest.raises(KvError, match="quota") as raised:
        fail(Exception("IO error: While appending to file: /store/block/000004.sst: Disk quota exceeded"))
    assert type(raised.value) is KvError, "nor a lock, whatever the path"


# -- trap 4: without CURRENT, RocksDB may make an empty database over an existing one


def test_trap_4_a_database_that_lost_current_is_never_replaced(filled: Path) -> None:
    (filled / "CURRENT").unlink()
    before = files(filled)
    for create in (False, True):
        with pytest.raises(EngineCorrupt, match="CURRENT"):
            open_engine(filled, create=create)
    with pytest.raises(EngineCorrupt, match="CURRENT"):
        open_engine(filled, read_only=True)
    with pytest.raises(EngineCorrupt, match="CURRENT"):
        list_families(filled)
    assert files(filled) == before


def test_trap_4_nothing_is_made_where_nothing_was_asked_for(tmp_path: Path) -> None:
    for directory in (tmp_path / "missing", tmp_path / "empty"):
        if directory.name == "empty":
            directory.mkdir()
        for read_only in (False, True):
            with pytest.raises(EngineMissing):
                open_engine(directory, read_only=read_only)
        with pytest.raises(EngineMissing):
            list_families(directory)
    assert not (tmp_path / "missing").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_trap_4_a_log_with_unflushed_writes_is_a_database_too(tmp_path: Path) -> None:
    engine = RocksEngine.open(tmp_path / "db", FAMILIES, create=True, write_ahead_log=True)
    fill(engine, "default", 3)
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    engine.close()
    for path in (tmp_path / "copy").iterdir():
        if path.suffix != ".log":
            path.unlink()
    with pytest.raises(EngineCorrupt, match="CURRENT"):
        open_engine(tmp_path / "copy", create=True)


def test_trap_4_what_a_crash_during_creation_leaves_may_be_created_again(tmp_path: Path) -> None:
    directory = tmp_path / "db"
    directory.mkdir()
    for name in ("LOCK", "IDENTITY", "LOG", "MANIFEST-000001", "000001.dbtmp"):
        (directory / name).write_bytes(b"")
    engine = open_engine(directory, create=True)
    fill(engine, "default", 3)
    engine.close()
    engine = open_engine(directory, create=True)
    assert len(engine.family("default").scan(ALL)) == 3, "create opens what exists"
    engine.close()


def test_a_corrupt_manifest_is_reported(filled: Path) -> None:
    manifest = next(filled.glob("MANIFEST-*"))
    manifest.write_bytes(manifest.read_bytes()[:40])
    with pytest.raises(EngineCorrupt):
        open_engine(filled)


# -- reading a foreign database


@pytest.fixture
def foreign(filled: Path) -> Path:
    """A database directory as RocketMQ leaves it: without our side file and text logs, on read-only terms."""
    for path in list(filled.iterdir()):
        if path.name.startswith(("LOG", "LOCK", "rocksdict")):
            path.unlink()
    return filled


def test_a_reading_open_leaves_no_trace(foreign: Path) -> None:
    before, time = files(foreign), foreign.stat().st_mtime_ns
    assert list_families(foreign) == ["default", "offset"]
    engine = open_engine(foreign, read_only=True)
    assert len(engine.family("default").scan(ALL)) == 20_000
    assert engine.statistics()["default.table_bytes"] > 0
    assert files(foreign) == before
    engine.close()
    assert (files(foreign), foreign.stat().st_mtime_ns) == (before, time)


def test_a_reading_open_leaves_nothing_in_the_temporary_directory(
    foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    engine = open_engine(foreign, read_only=True)
    assert len(list(temporary.iterdir())) == 1
    engine.close()
    assert list(temporary.iterdir()) == []
    with pytest.raises(KvError):
        RocksEngine.open(foreign, {"nope": SMALL}, create=False, read_only=True, write_ahead_log=False)
    assert list(temporary.iterdir()) == []


def test_a_reading_open_may_name_some_families_and_run_beside_a_writer(filled: Path) -> None:
    writer = open_engine(filled)
    engine = RocksEngine.open(filled, {"offset": SMALL}, create=False, read_only=True, write_ahead_log=False)
    assert engine.family("offset").scan(ALL) == []
    engine.close()
    writer.close()


def test_a_reading_open_sees_the_write_ahead_log(tmp_path: Path) -> None:
    writer = RocksEngine.open(tmp_path / "db", FAMILIES, create=True, write_ahead_log=True)
    fill(writer, "offset", 5)
    engine = RocksEngine.open(tmp_path / "db", FAMILIES, create=False, read_only=True, write_ahead_log=True)
    assert len(engine.family("offset").scan(ALL)) == 5
    engine.close()
    writer.close()


def test_a_reading_open_refuses_writes(filled: Path) -> None:
    engine = open_engine(filled, read_only=True)
    batch = engine.batch()
    batch.put(engine.family("default"), b"a", b"b")
    with pytest.raises(KvError):
        engine.write(batch)
    engine.close()
    with pytest.raises(ValueError, match="read-only"):
        open_engine(filled, create=True, read_only=True)


def test_a_new_family_joins_an_existing_database_only_with_create(tmp_path: Path) -> None:
    open_engine(tmp_path / "db", create=True).close()
    more = {**FAMILIES, "later": SMALL}
    with pytest.raises(KvError):
        RocksEngine.open(tmp_path / "db", more, create=False, write_ahead_log=False)
    RocksEngine.open(tmp_path / "db", more, create=True, write_ahead_log=False).close()
    assert list_families(tmp_path / "db") == ["default", "offset", "later"]


# -- the table format that RocketMQ's RocksDB reads


def test_tables_have_format_version_5(filled: Path) -> None:
    """The last 53 bytes of a table are its footer; before the 8 bytes of magic lies the version, little-endian."""
    tables = list(filled.glob("*.sst"))
    assert tables
    for table in tables:
        assert int.from_bytes(table.read_bytes()[-12:-8], "little") == 5


def test_compaction_gives_space_back(filled: Path) -> None:
    engine = open_engine(filled)
    before = engine.statistics()["default.table_bytes"]
    batch = engine.batch()
    batch.delete_range(engine.family("default"), KeyRange(b"00000000", b"00019000"))
    engine.write(batch)
    engine.compact(engine.family("default"), ALL)
    assert engine.statistics()["default.table_bytes"] < before / 5
    assert len(engine.family("default").scan(ALL)) == 1_000
    engine.close()


def test_programming_errors_keep_their_type(filled: Path) -> None:
    engine = open_engine(filled)
    batch = engine.batch()
    with pytest.raises(ValueError, match="bytes"):
        batch.put(engine.family("default"), b"key", "text")  # type: ignore[arg-type]
    engine.close()


def test_the_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    open_engine(tmp_path / "a" / "b", create=True).close()
    assert os.listdir(tmp_path / "a" / "b")


def test_stats_tell_tables_by_level_and_stalls_by_cause(tmp_path: Path) -> None:
    """RocksDB tells them as text only: another version may word it otherwise."""
    engine = open_engine(tmp_path / "db", create=True)
    family = engine.family("default")
    for number in range(2):
        batch = engine.batch()
        batch.put_all(family, ((b"%d\n 7:99[ %d" % (key, number), bytes(99)) for key in range(2_000)))
        engine.write(batch)
        engine.flush(["default"])
    stats = engine.statistics()
    assert stats["default.level_tables.0"] == stats["default.level_zero_tables"] == 2
    assert stats["default.level_bytes.0"] == stats["default.table_bytes"]
    engine.compact(family, KeyRange(b"", None))
    stats = engine.statistics()
    levels = [stats[f"default.level_bytes.{level}"] for level in range(7)]
    assert (levels[0], sum(levels)) == (0, stats["default.table_bytes"])
    assert sum(stats[f"default.level_tables.{level}"] for level in range(7)) == 1
    stalls = {name.removeprefix("default.") for name in stats if name.startswith("default.write_")}
    causes = ("memtables", "level_zero", "compaction")
    assert stalls == {"write_stopped", *(f"write_{kind}.{each}" for kind in ("delays", "stops") for each in causes)}
    engine.close()


def test_the_documentation_lists_every_stat(filled: Path) -> None:
    page = (ROOT / "docs/formats/consume-queue.md").read_text(encoding="utf-8")
    engine = open_engine(filled)
    stats = {name.split(".")[min(1, name.count("."))] for name in engine.statistics()}
    engine.close()
    assert {"memtable_bytes", "level_bytes", "running_compactions"} <= stats
    assert [stat for stat in sorted(stats) if f"`{stat}`" not in page] == []


# -- compaction on order


def test_closing_ends_a_compaction(tmp_path: Path) -> None:
    """Rocksdict's close would wait for it, minutes if need be; and the call that is cut short reports no error."""
    engine = open_engine(tmp_path / "db", create=True)
    for start in range(4):  # incompressible: long enough to be met in the middle
        batch = engine.batch()
        chance = Random(start)
        batch.put_all(engine.family("default"), ((chance.randbytes(16), chance.randbytes(200)) for _ in range(30_000)))
        engine.write(batch)
    engine.flush(["default", "offset"])
    endings: list[BaseException | None] = []

    def compact() -> None:
        try:
            engine.compact(engine.family("default"), ALL)
            endings.append(None)
        except EngineClosed as error:
            endings.append(error)

    thread = Thread(target=compact)
    thread.start()
    while not engine.statistics()["running_compactions"] and thread.is_alive():
        sleep(0.001)
    engine.close()
    thread.join()
    (ending,) = endings
    assert ending is None or "during a compaction" in str(ending)
    again = open_engine(tmp_path / "db")
    assert sum(1 for _ in again.family("default").iterate(ALL)) == 120_000
    again.close()
    with pytest.raises(EngineClosed):
        engine.compact(again.family("default"), ALL)


def test_fresh_tables_gather_as_long_as_they_are_to(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "db", create=True)
    family = engine.family("default")
    engine.gather_tables(family, 24)
    for number in range(12):
        fill(engine, "default", 100 + number)
        engine.flush(["default"])
    assert engine.statistics()["default.level_zero_tables"] == 12
    engine.gather_tables(family, None)
    give_up_s = monotonic() + 20
    while engine.statistics()["default.level_zero_tables"] > 4:
        assert monotonic() < give_up_s, "they are not merged"
        sleep(0.01)
    engine.close()
