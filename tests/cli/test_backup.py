"""`quarry backup` and `quarry restore` of stores that no broker runs on, as a user sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import StorePaths
from tests import golden
from tests.cli.offline_runner import flip, run
from tests.cli.said import complaint
from tests.verify.stores import fill, opened, send, verified

GoldenStore = Callable[[str], Path]


def shown(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def files(root: Path) -> dict[str, bytes]:
    """Everything that is part of a store; databases' locks and text logs are not."""
    left_out = ("LOCK", "LOG", "lock", "rocksdict-config.json", "backup-manifest.json")
    found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file() and path.name not in left_out}
    return {str(name): path.read_bytes() for name, path in found.items() if not path.name.startswith("LOG.old")}


@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_a_store_of_rocketmq_there_and_back(golden_copy: GoldenStore, tmp_path: Path, name: str) -> None:
    store = golden_copy(name) / "store"
    (made,) = shown("backup", store, tmp_path / "backups")
    assert not made["live"]
    assert made["bytes"] == made["copiedBytes"] + made["linkedBytes"] + made["reusedBytes"]
    expected = golden.records(store.parent)[-1]
    assert made["logEnd"] == expected["phyOffset"] + expected["storeSize"]
    (restored,) = shown("restore", tmp_path / "backups", tmp_path / "restored")
    assert restored["copiedBytes"] == made["bytes"]
    assert files(tmp_path / "restored") == files(store)
    assert verified(tmp_path / "restored").agrees


def test_a_second_backup_says_what_it_shares_and_any_one_can_be_restored(tmp_path: Path) -> None:
    store, backups = tmp_path / "store", tmp_path / "backups"
    fill(store, 400)
    first, *verdict = shown("backup", store, backups, "--verify")
    assert verdict[-1]["verdict"] == "agree"
    running = opened(store)
    send(running, 400)
    running.close()
    second, *verdict = shown("backup", store, backups, "--verify")
    assert verdict[-1]["verdict"] == "agree"
    assert first["linkedBytes"] >= 64 * 1024
    assert second["reusedBytes"] >= 64 * 1024
    assert second["logEnd"] > first["logEnd"]
    for number, backup in enumerate((first, second)):
        root = tmp_path / f"restored-{number}"
        shown("restore", backup["backup"], root)
        again = opened(root)
        assert again.messages.appended_up_to == backup["logEnd"]
        again.close()
    # links are safe: a store that goes on changes no backup
    assert shown("verify", first["backup"])[-1]["logEnd"] == first["logEnd"]


def test_a_store_after_an_unclean_stop_is_backed_up_as_it_is(tmp_path: Path) -> None:
    """`abort` comes along: a broker on the copy recovers as one on the store would."""
    fill(tmp_path / "store", 3)
    StorePaths(tmp_path / "store").abort.write_text("1")
    shown("backup", tmp_path / "store", tmp_path / "backups")
    shown("restore", tmp_path / "backups", tmp_path / "restored")
    assert StorePaths(tmp_path / "restored").abort.read_text() == "1"


def test_a_damaged_backup_is_exit_code_1_and_names_the_file(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    (made,) = shown("backup", tmp_path / "store", tmp_path / "backups", "--copy")
    victim = StorePaths(Path(made["backup"])).commit_log / f"{0:020d}"
    flip(victim, 1000)
    result = run("restore", tmp_path / "backups", tmp_path / "restored")
    assert result.exit_code == 1
    assert f"{victim}: the content changed" in result.stderr
    assert len(complaint(result.stderr).splitlines()) == 1
    assert not (tmp_path / "restored").exists()


def test_what_could_not_run_is_exit_code_2_and_one_line(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    shown("backup", tmp_path / "store", tmp_path / "backups")
    lock = PosixDisk().lock(StorePaths(tmp_path / "store").lock)
    refusals = [
        (run("backup", tmp_path / "store", tmp_path / "backups"), "a broker is running on this store"),
        (run("backup", tmp_path / "missing", tmp_path / "backups"), "no such directory"),
        (run("backup", tmp_path / "store", tmp_path / "store" / "inside"), "must be outside"),
        (run("restore", tmp_path / "backups", tmp_path / "store"), "not empty"),
        (run("restore", tmp_path / "missing", tmp_path / "new"), "contains no backup"),
        (run("backup", "--admin", "127.0.0.1:1", tmp_path / "backups"), "no answer from a broker"),
    ]
    lock.release()
    for result, words in refusals:
        assert result.exit_code == 2, result.output
        assert words in result.stderr
        assert len(complaint(result.stderr).splitlines()) == 1
    assert run("backup", tmp_path / "store").exit_code == 2
    assert run("backup", "--admin", "127.0.0.1:1", tmp_path / "store", tmp_path / "backups").exit_code == 2


def test_a_store_is_set_aside_for_the_restored_one_unless_a_broker_runs_on_it(tmp_path: Path) -> None:
    root, paths = tmp_path / "store", StorePaths(tmp_path / "store")
    fill(root)
    shown("backup", root, tmp_path / "backups")
    before = files(root)
    paths.tls.mkdir()
    (paths.tls / "key.pem").write_text("known to clients")
    words = ("restore", "--set-aside", tmp_path / "backups", root)
    lock = PosixDisk().lock(paths.lock)
    for refused in (run(*words), run(*words, "--dry-run")):
        assert (refused.exit_code, "a broker is running on this directory" in refused.stderr) == (2, True)
    lock.release()
    assert shown(*words, "--dry-run")[0]["dryRun"] is True
    assert (paths.tls / "key.pem").exists()

    (restored,) = shown(*words)
    aside = Path(restored["setAside"])
    assert (aside.parent, aside.name.startswith("store.before-2")) == (tmp_path, True)
    assert files(aside) == before
    assert (paths.tls / "key.pem").read_text() == "known to clients"
    assert verified(root).agrees

    # a restore that was killed, and one into a folder that is empty
    paths.restoring.mkdir()
    assert shown(*words)[0]["setAside"] is not None
    (new,) = shown(*words[:3], tmp_path / "new")
    assert new["setAside"] is None


def test_a_directory_is_not_set_aside_with_the_backup_or_with_a_lock_that_is_a_link(tmp_path: Path) -> None:
    root, lock = tmp_path / "volume" / "store", StorePaths(tmp_path / "volume" / "store").lock
    fill(root)
    shown("backup", root, tmp_path / "volume" / "backups")
    within = run("restore", "--set-aside", tmp_path / "volume" / "backups", tmp_path / "volume")
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    locked = run("restore", "--set-aside", tmp_path / "volume" / "backups", root)
    for result, words in ((within, "is in this directory"), (locked, "is a link")):
        assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert not (tmp_path / "elsewhere").exists()
    assert verified(root).agrees


@pytest.mark.parametrize("name", [".", "../link"])
def test_a_store_is_set_aside_by_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    root = tmp_path / "store"
    fill(root)
    shown("backup", root, tmp_path / "backups")
    (tmp_path / "link").symlink_to(root)
    monkeypatch.chdir(root)
    (restored,) = shown("restore", "--set-aside", tmp_path / "backups", name)
    assert Path(restored["setAside"]).name.startswith("store.before-2")
    assert verified(root).agrees


def test_a_damaged_backup_leaves_the_store_where_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    (made,) = shown("backup", "--copy", tmp_path / "store", tmp_path / "backups")
    flip(Path(made["backup"]) / "commitlog" / f"{0:020}", 1000)
    assert run("restore", "--set-aside", tmp_path / "backups", tmp_path / "store").exit_code == 1
    assert verified(tmp_path / "store").agrees


def test_no_broker_starts_where_a_restore_did_not_finish(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    StorePaths(tmp_path / "store").restoring.mkdir()
    assert "a restore did not finish here" in run("verify", tmp_path / "store").stderr


def test_an_unfinished_backup_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "backups" / "20261121T083522.125Z" / "commitlog").mkdir(parents=True)
    result = run("restore", tmp_path / "backups", tmp_path / "new")
    assert (result.exit_code, "1 unfinished" in result.stderr) == (2, True)
