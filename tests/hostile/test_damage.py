"""A store that bad luck got at while no broker ran: what `quarry serve` says, what its clients see, what is lost.

One store is filled once; each case damages a copy of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.store.errors import StoreUnusable
from tests.e2e.broker import Broker, environment_of, quarry
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client
from tests.hostile.conftest import SETTINGS
from tests.store.test_golden_stores import opened

MIB: Final = 1 << 20
MESSAGES: Final = 330
BODY_SIZE: Final = 10_000
TOPIC: Final = "orders"
SENT: Final = frozenset(f"m{number:04d}" for number in range(MESSAGES))
UNREADABLE: Final = "is damaged: its bytes cannot be read: Input/output error"
BODY_AT: Final = 88
"""Where the body of a record with IPv4 hosts begins (docs/formats/commit-log.md)."""
DAMAGE_SETTINGS: Final = {**SETTINGS, "store.segment_size": "1MiB", "limits.body_size": "256KiB"}


def _broker(store: Path, logs: Path) -> Broker:
    return Broker(store, logs=logs, environment=environment_of(DAMAGE_SETTINGS))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four segments that was stopped in good order."""
    root = tmp_path_factory.mktemp("filled")
    broker = _broker(root / "store", root / "logs")
    try:
        broker.start()
        with Client(broker.endpoint) as client:
            for message_id in sorted(SENT):
                client.send(TOPIC, message_id, BODY_SIZE)
        broker.stop()
    finally:
        broker.close()
    assert len(list((root / "store" / "commitlog").iterdir())) == 4
    return root / "store"


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


def segment(store: Path, number: int) -> Path:
    return store / "commitlog" / f"{number * MIB:020d}"


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def refusal(store: Path) -> str:
    """Why the store does not open; `serve_refusal` shows that this is what a user sees."""
    with pytest.raises(StoreUnusable) as refused:
        opened(store)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def serve_refusal(store: Path) -> str:
    """The last line of a `quarry serve` that refuses the store; log lines may come before it."""
    done = quarry(
        "serve", "--store", str(store), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--http", "127.0.0.1:0",
        environment=environment_of(DAMAGE_SETTINGS),
    )  # fmt: skip
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def _record_start(segment: Path, body_start: bytes) -> int:
    """Where the record with that body begins: header fields and the body's size come before the body."""
    return segment.read_bytes().index(body_start) - BODY_AT


@contextmanager
def running(store: Path) -> Iterator[Broker]:
    broker = _broker(store, store.parent / "logs")
    try:
        yield broker.start()
    finally:
        broker.close()


class Harvest:
    """What a new group gets until three receives in a row bring nothing."""

    def __init__(self, endpoint: str) -> None:
        self.ids: list[str] = []
        self.refusals: list[str] = []
        with Client(endpoint) as client:
            vain = 0
            while vain < 3:
                received: list[str] = []
                try:
                    received = client.receive("harvest", TOPIC, polling_s=0)
                except Refused as refused:
                    self.refusals.append(str(refused))
                self.ids += received
                vain = 0 if received else vain + 1


def assert_complete(store: Path) -> None:
    with running(store) as broker:
        harvest = Harvest(broker.endpoint)
        assert (frozenset(harvest.ids), harvest.refusals) == (SENT, [])
        broker.stop()


@pytest.mark.parametrize("number", range(4))
def test_a_segment_cut_short_is_refused_by_name(store: Path, number: int) -> None:
    path = segment(store, number)
    os.truncate(path, 500_000)
    sizes = f"the file has 500000 bytes, a segment of this log {MIB}, as quarry/SEGMENT_SIZE says"
    assert refusal(store) == f"{path}: {sizes}"
    done = quarry("decode", str(store))
    assert done.returncode == 1
    assert str(path) in done.stderr


def test_the_only_segment_cut_short_is_refused_by_name(store: Path) -> None:
    for number in (1, 2, 3):
        segment(store, number).unlink()
    os.truncate(segment(store, 0), 500_000)
    line = refusal(store)
    assert line.startswith(f"{segment(store, 0)}: the file has 500000 bytes, a segment of this log {MIB}")
    assert serve_refusal(store) == line


@pytest.mark.parametrize("number", [1, 3])
def test_a_segment_that_is_gone_is_refused_by_name(store: Path, number: int) -> None:
    name = segment(store, number).name
    segment(store, number).unlink()
    line = refusal(store)
    assert name in line or str(number * MIB) in line


def test_files_of_others_in_the_log_are_left_alone(store: Path) -> None:
    strangers = [store / "commitlog" / name for name in ("notes.txt", ".DS_Store", "9" * 20, "0" * 19)]
    for path in strangers:
        path.write_bytes(b"not ours")
    assert_complete(store)
    assert all(path.read_bytes() == b"not ours" for path in strangers)


def test_a_flipped_bit_in_an_old_record_is_reported_and_the_others_are_delivered(store: Path) -> None:
    """Promise 3, reported and never skipped: the group stops before the record, in its queue alone."""
    at = segment(store, 0).read_bytes().index(b"m0030|") + 5_000
    flip(segment(store, 0), at)
    with running(store) as broker:
        harvest = Harvest(broker.endpoint)
        assert broker.get("/readyz") == (200, "ready\n")
        lines = [line for line in broker.words(last=100_000).splitlines() if "damaged data" in line]
        assert broker.stat("quarry_damage_met_total") >= len(harvest.refusals)
        broker.stop()
    record_at = int(segment(store, 0).name) + _record_start(segment(store, 0), b"m0030|")
    named = f"commitlog/{segment(store, 0).name}: the record at offset {record_at}, consume queue entry "
    reason = "is damaged: the body does not match its CRC"
    lost = SENT - frozenset(harvest.ids)
    assert "m0030" in lost
    assert len(lost) <= MESSAGES / 2, "the other queue goes on"
    assert len(harvest.refusals) == 3, "as often as it was asked"
    assert all(each.startswith(f"INTERNAL_SERVER_ERROR: {named}") and reason in each for each in harvest.refusals)
    (line,) = lines
    assert f"{store}/{named}" in line, "the log says where, the answers where in the store"
    assert reason in line
    done = quarry("decode", str(store))
    assert done.returncode == 1
    assert "the body does not match its CRC" in done.stderr
    assert done.stderr.startswith(str(segment(store, 0)))
    assert len(done.stderr.splitlines()) == 1


def test_messages_that_the_disk_cannot_read_are_reported_and_the_broker_goes_on(store: Path) -> None:
    """Pages after the end of a file that was cut are read as those of a bad disk are: through a mapping, not at all."""
    with running(store) as broker:
        with Client(broker.endpoint) as client:
            assert client.receive("first", TOPIC, polling_s=0), "so that the segment is mapped"
        os.truncate(segment(store, 0), 122 * 4_096)
        harvest = Harvest(broker.endpoint)
        assert broker.get("/readyz") == (200, "ready\n")
        assert broker.stat("quarry_damage_met_total") >= len(harvest.refusals)
        with Client(broker.endpoint) as client:
            client.send(TOPIC, "after", BODY_SIZE)
        broker.stop()
    assert "m0000" in harvest.ids
    assert len(harvest.refusals) == 3
    named = f"INTERNAL_SERVER_ERROR: commitlog/{segment(store, 0).name}: the record at offset "
    assert [each for each in harvest.refusals if not each.startswith(named) or UNREADABLE not in each] == []


def test_a_damaged_record_that_was_given_up_is_passed_over_and_told(store: Path) -> None:
    """The operator accepted the loss in words; nobody else loses anything, and it is counted."""
    at = segment(store, 0).read_bytes().index(b"m0030|") + 5_000
    record_at = int(segment(store, 0).name) + _record_start(segment(store, 0), b"m0030|")
    flip(segment(store, 0), at)
    done = quarry("recover", str(store), "--replace-damaged")
    assert done.returncode == 1
    assert f"bytes at offset {record_at} were replaced: the body does not match its CRC" in done.stdout
    with running(store) as broker:
        harvest = Harvest(broker.endpoint)
        assert harvest.refusals == []
        assert frozenset(harvest.ids) == SENT - {"m0030"}
        assert broker.stat("quarry_messages_passed_over_total") == 1
        assert broker.stat("quarry_damage_met_total") == 0
        lines = [line for line in broker.words(last=100_000).splitlines() if "passed over" in line]
        broker.stop()
    (line,) = lines
    assert f"the record at offset {record_at} was damaged and has been given up" in line
    assert quarry("decode", str(store)).returncode == 0


@pytest.mark.parametrize("directory", ["consumequeue_rocksdb", "quarry"])
@pytest.mark.parametrize(
    "damage",
    [
        "CURRENT is gone",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("MANIFEST is gone", "tables are gone")),
    ],
)
def test_a_database_that_does_not_open_is_named_with_what_to_do(store: Path, directory: str, damage: str) -> None:
    database = store / directory
    match damage:
        case "CURRENT is gone":
            (database / "CURRENT").unlink()
        case _:
            for path in database.glob("MANIFEST-*" if damage == "MANIFEST is gone" else "*.sst"):
                path.unlink()
    line = refusal(store)
    assert line.startswith(f"{database}: ")
    assert "move the directory away" in line
    if directory == "consumequeue_rocksdb":
        assert quarry("recover", str(store), "--rebuild-queues").returncode == 0
        assert_complete(store)
    elif damage == "CURRENT is gone":
        database.rename(store.parent / "moved-away")
        assert_complete(store)


def test_a_damaged_table_is_an_answer_in_band_and_a_line_in_the_log(store: Path) -> None:
    """A scan that meets a damaged block once ended as if the queue ended there."""
    tables = sorted((store / "consumequeue_rocksdb").glob("*.sst"))
    flip(tables[0], 300)  # the entries: the data blocks come first
    with running(store) as broker:
        harvest = Harvest(broker.endpoint)
        assert len(harvest.refusals) == 3
        assert all(each.startswith("INTERNAL_SERVER_ERROR: ") for each in harvest.refusals)
        assert broker.get("/readyz") == (200, "ready\n")
        assert "block checksum mismatch" in broker.words(last=100_000)
        with Client(broker.endpoint) as client:
            client.send(TOPIC, "afterwards", 100)
    shutil.rmtree(store / "consumequeue_rocksdb")
    with running(store) as broker:
        assert frozenset(Harvest(broker.endpoint).ids) == SENT | {"afterwards"}


def test_what_is_deleted_is_made_again(store: Path) -> None:
    for name in ("consumequeue_rocksdb", "quarry"):
        shutil.rmtree(store / name)
    (store / "lock").unlink()
    assert_complete(store)


def test_a_second_broker_is_refused_and_the_first_does_not_notice(store: Path) -> None:
    with running(store) as broker:
        assert serve_refusal(store) == f"{store / 'lock'}: another broker holds this store"
        assert frozenset(Harvest(broker.endpoint).ids) == SENT
        broker.stop()


DAMAGES: Final[dict[str, Callable[[Path], object]]] = {
    "the log": lambda store: flip(segment(store, 3), 100),
    "zeros in the log": lambda store: segment(store, 3).write_bytes(bytes(MIB)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_below_the_durable_offset_after_a_kill_is_refused_by_name(
    store: Path, damage: Callable[[Path], object]
) -> None:
    """Promise 3: after an unclean stop the end of the log is checked, and what was acknowledged must be there."""
    (store / "abort").write_bytes(b"1")
    shutil.rmtree(store / "consumequeue_rocksdb")
    damage(store)
    line = refusal(store)
    assert line.startswith(f"{segment(store, 3)}: the log is broken at offset {3 * MIB}")
    assert segment(store, 3).stat().st_size == MIB, "nothing was cut"
