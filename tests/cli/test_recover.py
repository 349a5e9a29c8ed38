"""`quarry recover`: says what it would do, does it, and gives up only what it was told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.store.fs import PosixDisk
from tests import golden
from tests.cli.offline_runner import flip, refusal, run, zero
from tests.conftest import GoldenStore

SEGMENT_SIZE = 1 << 20


@pytest.fixture
def store(golden_copy: GoldenStore) -> Path:
    """A store of RocketMQ that was killed."""
    return golden_copy("file-kill") / "store"


def segment(store: Path, number: int = 0) -> Path:
    return store / "commitlog" / f"{number * SEGMENT_SIZE:020d}"


def result(code: int, *arguments: object) -> dict[str, Any]:
    done = run("recover", *arguments, "--json")
    assert done.exit_code == code, (done.output, done.stderr, done.exception)
    (line,) = done.stdout.splitlines()
    fields: dict[str, Any] = json.loads(line)
    return fields


def contents(store: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def test_a_dry_run_says_what_the_run_then_does(store: Path) -> None:
    before = contents(store)
    planned = result(0, store, "--dry-run")
    assert contents(store) == before
    done = result(0, store)
    assert planned["dryRun"]
    assert not done["dryRun"]
    same = planned.keys() - {"dryRun"}
    assert {key: planned[key] for key in same} == {key: done[key] for key in same}
    records = [line for line in golden.records(store.parent) if "blank" not in line]
    assert done["records"] == done["dispatched"] == len(records)
    assert done["end"] == records[-1]["phyOffset"] + records[-1]["storeSize"]
    again = result(0, store)
    assert (again["records"], again["start"]) == (0, done["end"]), "it was left as a clean stop leaves it"


def test_bytes_after_the_end_are_a_finding(store: Path) -> None:
    end = result(0, store, "--dry-run")["end"]
    with segment(store, 2).open("r+b") as file:
        file.seek(end - 2 * SEGMENT_SIZE)
        file.write(b"leftovers")
    planned = result(1, store, "--dry-run")
    assert (planned["endedBy"], planned["verdict"], planned["cutBytes"]) == ("corrupt", "end", 9)
    assert planned["findings"] == [f"9 bytes after offset {end} would be cut off and kept"]
    done = result(1, store)
    assert [Path(path).read_bytes() for path in done["kept"]] == [b"leftovers"]
    assert result(0, store)["findings"] == []


def test_damage_is_refused_named_and_given_up_on_order(store: Path) -> None:
    records = [line for line in golden.records(store.parent) if "blank" not in line]
    damaged = records[200]
    at = damaged["phyOffset"]
    flip(segment(store), at + 100)
    line = refusal(1, "recover", store)
    assert line.startswith(str(segment(store)))
    assert f"offset {at}" in line
    assert f"quarry recover {store} --replace-damaged" in line
    planned = result(1, store, "--dry-run")
    assert planned["verdict"] == "refuse"
    before = contents(store)
    planned = result(1, store, "--dry-run", "--replace-damaged")
    assert contents(store) == before
    expected = [{"begin": at, "end": at + damaged["storeSize"], "reason": "the body does not match its CRC"}]
    assert planned["damaged"] == expected
    done = result(1, store, "--replace-damaged")
    assert done["damaged"] == expected
    assert done["findings"] == [
        f"{damaged['storeSize']} bytes at offset {at} were replaced: the body does not match its CRC"
    ]
    assert done["start"] == at, "what was dispatched before the refusal is not read again"
    assert done["end"] == records[-1]["phyOffset"] + records[-1]["storeSize"]
    kept = (store / "commitlog" / "broken" / f"{at:020d}.broken").read_bytes()
    assert len(kept) == damaged["storeSize"]
    assert result(0, store, "--replace-damaged")["damaged"] == []
    assert run("decode", store, "--json").exit_code == 0


@pytest.mark.slow
def test_what_was_given_up_is_no_difference_to_verify_and_named_by_decode(store: Path) -> None:
    result(0, store)
    damaged = [line for line in golden.records(store.parent) if "blank" not in line][300]
    flip(segment(store), damaged["phyOffset"] + 100)
    assert run("verify", store).exit_code == 1
    result(1, store, "--replace-damaged")
    verified = run("verify", store, "--json")
    assert verified.exit_code == 0, verified.stdout
    assert json.loads(verified.stdout.splitlines()[-1])["notes"]["unitsOfGivenUpRecords"] >= 1
    place = ("--topic", damaged["topic"], "--queue", damaged["queueId"], "--offset", damaged["queueOffset"])
    assert "damaged and has been given up" in refusal(1, "decode", store, *place)


def test_a_hole_over_a_segments_end_is_filled(store: Path) -> None:
    zero(segment(store), SEGMENT_SIZE - 5_000, SEGMENT_SIZE)
    zero(segment(store, 1), 0, 3_000)
    done = result(1, store, "--replace-damaged")
    (first, second) = done["damaged"]
    assert (first["end"], second["begin"]) == (SEGMENT_SIZE, SEGMENT_SIZE)
    assert run("decode", store, "--json").exit_code == 0


@pytest.mark.parametrize("left", [0, pytest.param(400_000, marks=pytest.mark.slow)])
def test_a_segment_that_is_gone_or_cut_short_is_given_up_once_there_are_zeros_in_its_place(
    store: Path, left: int
) -> None:
    """docs/commands.md: `truncate -s` makes the file, and what it held is lost by the operator's word."""
    result(0, store)
    with segment(store, 1).open("r+b") as file:
        file.truncate(left)
    if not left:
        segment(store, 1).unlink()
    assert segment(store, 1).name in refusal(1, "recover", store, "--replace-damaged")
    with segment(store, 1).open("ab") as file:
        file.truncate(SEGMENT_SIZE)
    done = result(1, store, "--replace-damaged")
    (stretch,) = done["damaged"]
    assert stretch["end"] == 2 * SEGMENT_SIZE
    assert stretch["begin"] <= SEGMENT_SIZE + left
    assert run("decode", store, "--json").exit_code == 0
    assert run("verify", store).exit_code == 0


def test_damaged_queues_are_rebuilt_on_order(store: Path) -> None:
    result(0, store)
    (store / "consumequeue_rocksdb" / "CURRENT").write_bytes(b"MANIFEST-999999\n")
    assert "--rebuild-queues" in refusal(1, "recover", store)
    assert "--rebuild-queues" in result(1, store, "--dry-run")["findings"][0]
    planned = result(0, store, "--dry-run", "--rebuild-queues")
    done = result(0, store, "--rebuild-queues")
    assert planned["dispatched"] == done["dispatched"] > 0
    assert (store / "consumequeue_rocksdb.set-aside-0" / "CURRENT").exists()


def test_for_people_findings_come_before_the_stats(store: Path) -> None:
    flip(segment(store), [line for line in golden.records(store.parent) if "blank" not in line][7]["phyOffset"] + 100)
    done = run("recover", store, "--replace-damaged")
    assert done.exit_code == 1
    finding, stats = done.stdout.splitlines()
    assert "were replaced" in finding
    assert stats.startswith("log [0, ")


def test_what_is_no_store_or_is_in_use_cannot_be_recovered(store: Path, tmp_path: Path) -> None:
    assert refusal(2, "recover", tmp_path / "nothing").endswith("there is no store in this directory")
    assert not (tmp_path / "nothing").exists()
    lock = PosixDisk().lock(store / "lock")
    assert "holds this store" in refusal(2, "recover", store)
    assert "broker is running" in refusal(2, "recover", store, "--dry-run")
    lock.release()
