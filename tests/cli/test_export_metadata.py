"""`quarry export-metadata`: what it shows and how it ends."""

from __future__ import annotations

import shutil
from pathlib import Path

from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.rocketmq import read_metadata
from tests.cli.offline_runner import lines, refusal, run
from tests.verify.stores import fill


def test_it_says_what_it_wrote_and_where(tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "target"
    fill(store)
    (done,) = lines("export-metadata", store, "--output", target / "config")
    assert (done["topics"], done["groups"], done["offsets"], done["setBack"]) == (2, 0, 1, 1)
    assert all(Path(path).is_file() for path in done["paths"])
    assert {Path(path).name for path in done["paths"]} >= {"delayOffset.json", "timercheck"}
    assert (done["held"], done["remove"]) == (True, [])
    found = read_metadata(PosixDisk(), target)
    assert {each.name for each in found.topics} == {"orders", "bills"}
    shown = run("export-metadata", store, "--output", tmp_path / "other", "--format", "rocksdb").stdout.splitlines()
    assert shown[0] == "2 topics, 0 groups, 1 consumer offsets"
    assert shown[1] == "1 offsets were set back to messages in flight, which will be delivered again"


def test_what_rocketmq_must_not_find_and_what_is_not_known(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store)
    (store / "timerlog").mkdir()
    (done,) = lines("export-metadata", store, "--output", tmp_path / "config")
    assert done["remove"] == [str(store / "timerlog")]
    shutil.rmtree(store / "held_rocksdb")
    (done,) = lines("export-metadata", store, "--output", tmp_path / "other")
    assert not done["held"]
    assert "timercheck" not in {Path(path).name for path in done["paths"]}
    text = run("export-metadata", store, "--output", tmp_path / "again").stdout
    assert "timerlog: remove this before RocketMQ starts" in text
    assert "the progress of delayed messages is unknown" in text


def test_what_it_cannot_run_on(tmp_path: Path) -> None:
    assert "no such directory" in refusal(2, "export-metadata", tmp_path / "nothing", "--output", tmp_path)
