"""Later puts are visible in an engine as if they were stored already (kv/engine.py, `put_later`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quarry_mq.kv import (
    EngineClosed,
    EngineFull,
    FamilyOptions,
    KeyRange,
    KeyValueEngine,
    KvError,
    RocksEngine,
    WriteBatch,
)
from quarry_mq.kv.memory import MemoryEngine

ALL = KeyRange(b"", None)
OPTIONS = {"plain": FamilyOptions(), "later": FamilyOptions(later_puts=True)}
KEYS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
PAIRS = st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=2)))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("later"), PAIRS),
        st.tuples(st.just("now"), PAIRS),
        st.tuples(st.just("elsewhere"), PAIRS),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("delete range"), st.tuples(KEYS, KEYS)),
        st.tuples(st.just("settle"), st.integers(0, 3)),
        st.tuples(st.just("flush"), st.sampled_from([["later"], ["plain"], ["plain", "later"]])),
        st.tuples(st.just("fill"), st.booleans()),
    ),
    max_size=12,
)


class _Filling(RocksEngine):
    """Takes no writes while `is_full`: there is no room, or a flush has failed."""

    is_full = False
    error: KvError = EngineFull("no room")

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        if self.is_full:
            raise self.error
        super().write(batch, sync=sync)


class _FillingMemory(MemoryEngine):
    is_full = False
    error: KvError = EngineFull("no room")

    def write(self, batch: WriteBatch, *, sync: bool = False) -> None:
        if self.is_full:
            raise self.error
        super().write(batch, sync=sync)


def open_rocks(directory: Path) -> _Filling:
    engine = _Filling.open(directory, OPTIONS, create=True, write_ahead_log=False)
    assert isinstance(engine, _Filling)
    return engine


@pytest.fixture(params=["memory", "rocks"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Filling | _FillingMemory]:
    made = _FillingMemory(list(OPTIONS)) if request.param == "memory" else open_rocks(tmp_path / "db")
    yield made
    made.is_full = False
    made.close()


def later(engine: KeyValueEngine, *pairs: tuple[bytes, bytes]) -> None:
    engine.put_later(engine.family("later"), list(pairs))


def write(engine: KeyValueEngine, stage: Callable[[WriteBatch], None]) -> None:
    batch = engine.batch()
    stage(batch)
    engine.write(batch)


def told(engine: KeyValueEngine) -> Sequence[list[tuple[bytes, bytes]]]:
    """All that the family holds, by each way to ask for it."""
    family = engine.family("later")
    keys = [b"a", b"b", b"c", b"d", b"e"]
    by_key = [(key, value) for key in keys if (value := family.get(key)) is not None]
    by_keys = [(key, value) for key, value in zip(keys, family.get_many(keys), strict=True) if value is not None]
    parts = [
        pair for begin, end in ((b"", b"c"), (b"c", b"d"), (b"d", None)) for pair in family.scan(KeyRange(begin, end))
    ]
    limited: list[tuple[bytes, bytes]] = []
    while page := family.scan(KeyRange(limited[-1][0] + b"\0" if limited else b"", None), limit=2):
        limited += page
    return [
        by_key,
        by_keys,
        family.scan(ALL),
        family.scan(ALL, reverse=True)[::-1],
        family.take(ALL, len(keys)),
        list(family.iterate(ALL)),
        list(family.iterate(ALL, reverse=True))[::-1],
        parts,
        limited,
    ]


@given(steps=STEPS)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_as_if_it_were_stored(engine: _Filling | _FillingMemory, steps: list[tuple[str, object]]) -> None:
    """Without room on the disk, too: then nothing is written, and all reads go on."""
    engine.is_full = False
    family, plain = engine.family("later"), engine.family("plain")
    write(engine, lambda batch: batch.delete_range(family, KeyRange(b"", b"z")))
    model: dict[bytes, bytes] = {}
    for what, about in steps:
        waits = engine.is_full
        match what, about:
            case "later", list(pairs):
                later(engine, *pairs)
                model.update(pairs)
            case "now", list(pairs) if pairs and not waits:
                write(engine, lambda batch: batch.put_all(family, pairs))
                model.update(pairs)
            case "elsewhere", list(pairs) if not waits:
                write(engine, lambda batch: batch.put_all(plain, pairs))
            case "delete", bytes(key) if not waits:
                batch = engine.batch()
                batch.delete(family, key)
                engine.write(batch)
                model.pop(key, None)
            case "delete range", (bytes(begin), bytes(end)) if not waits:
                write(engine, lambda batch: batch.delete_range(family, KeyRange(begin, end)))
                model = {key: value for key, value in model.items() if not begin <= key < end}
            case "settle", int(more_than) if not waits:
                engine.settle(more_than=more_than)
            case "flush", list(names) if not waits:
                engine.flush(names)
            case "fill", bool(is_full):
                engine.is_full = is_full
        assert all(each == sorted(model.items()) for each in told(engine)), what
        if not engine.is_full:
            with engine.snapshot() as snapshot:
                assert family.scan(ALL, snapshot=snapshot) == sorted(model.items())


@pytest.mark.parametrize("error", [EngineFull("no room"), KvError("a flush has failed")])
def test_what_cannot_be_stored_waits_on_and_holds_up_what_comes_after_it(
    engine: _Filling | _FillingMemory, error: KvError
) -> None:
    """All reads go on: a disk that takes nothing more still gives what it has."""
    later(engine, (b"a", b"1"))
    engine.is_full, engine.error = True, error
    with pytest.raises(KvError, match=str(error)):
        engine.settle()
    with pytest.raises(KvError, match=str(error)):
        engine.flush(["later"])
    with pytest.raises(KvError, match=str(error)):
        write(engine, lambda batch: batch.put(engine.family("later"), b"a", b"2"))
    assert all(each == [(b"a", b"1")] for each in told(engine))
    engine.is_full = False
    write(engine, lambda batch: batch.put(engine.family("later"), b"a", b"2"))
    assert all(each == [(b"a", b"2")] for each in told(engine))


def test_a_batch_for_another_family_does_not_wait_for_it(engine: _Filling | _FillingMemory) -> None:
    before = engine.sequence()
    later(engine, (b"a", b"1"))
    assert engine.sequence() == before
    write(engine, lambda batch: batch.put(engine.family("plain"), b"a", b"1"))
    assert engine.sequence() == before + 1
    engine.settle(more_than=1)
    assert engine.sequence() == before + 1
    engine.settle(more_than=0)
    assert engine.sequence() == before + 2


def test_it_is_stored_with_a_clean_close_and_lost_with_a_crash(tmp_path: Path) -> None:
    engine = open_rocks(tmp_path / "db")
    later(engine, (b"a", b"1"))
    engine.close()
    with pytest.raises(EngineClosed):
        later(engine, (b"b", b"1"))
    with pytest.raises(EngineClosed):
        engine.family("later")
    engine = open_rocks(tmp_path / "db")
    assert engine.family("later").scan(ALL) == [(b"a", b"1")]
    engine.close()

    memory = MemoryEngine(list(OPTIONS))
    later(memory, (b"a", b"1"))
    memory.crash(surviving_batches=5)
    assert memory.family("later").scan(ALL) == []


def test_a_family_that_does_not_ask_for_it_gets_them_at_once(tmp_path: Path) -> None:
    engine = open_rocks(tmp_path / "db")
    engine.put_later(engine.family("plain"), [(b"a", b"1"), (b"b", b"2")])
    assert engine.sequence() == 2
    engine.close()


def test_a_checkpoint_holds_what_waits(engine: _Filling | _FillingMemory, tmp_path: Path) -> None:
    later(engine, (b"a", b"1"))
    engine.checkpoint(tmp_path / "copy")
    copy = (
        MemoryEngine.from_checkpoint(tmp_path / "copy")
        if isinstance(engine, MemoryEngine)
        else open_rocks(tmp_path / "copy")
    )
    assert copy.family("later").get(b"a") == b"1"
    copy.close()


def test_nobody_misses_what_is_stored_by_another_thread_meanwhile(engine: _Filling | _FillingMemory) -> None:
    """A number that was seen once is never seen to go back, whoever stores it."""
    family, is_over = engine.family("later"), False

    def store() -> None:
        while not is_over:
            engine.settle()
            family.scan(ALL)

    thread = Thread(target=store)
    thread.start()
    try:
        for number in range(3_000):
            value = number.to_bytes(8, "big")
            later(engine, (b"a", value))
            assert family.get(b"a") == value
            assert family.get_many([b"b", b"a"]) == [None, value]
    finally:
        is_over = True
        thread.join()
