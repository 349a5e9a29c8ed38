"""Files of a store are for the broker's own user, whatever its shell allows others."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.broker import Broker, environment_of, quarry
from tests.hostile.caller import Client
from tests.hostile.conftest import SETTINGS

OTHERS = 0o077


def open_to_others(root: Path) -> list[str]:
    return [
        f"{path} {stat.S_IMODE(path.lstat().st_mode):o}"
        for path in (root, *root.rglob("*"))
        if path.lstat().st_mode & OTHERS
    ]


def launched(broker: Broker, umask: str = "022") -> None:
    broker.launch(under=("sh", "-c", f'umask {umask}; exec "$@"', "sh"))
    assert broker.ready_or_ended() is None, broker.words()


@pytest.mark.slow
def test_stores_backups_and_the_audit_are_for_their_owner(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    settings = {**SETTINGS, "log.audit_file": audit, "index.tiered": True, "index.hash_files": True}
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    with closing(broker):
        launched(broker)
        with Client(broker.endpoint) as client:
            client.send("orders", "m1", 1_000)
        assert quarry("topic", "create", "made", "--admin", broker.admin).returncode == 0
        for way in ("live", "again"):
            online = quarry("backup", str(tmp_path / way), "--admin", broker.admin)
            assert online.returncode == 0, online.stderr
        broker.stop()
    offline = quarry("backup", str(broker.store), str(tmp_path / "stopped"))
    assert offline.returncode == 0, offline.stderr
    restored = quarry("restore", str(tmp_path / "live"), str(tmp_path / "restored"))
    assert restored.returncode == 0, restored.stderr
    assert audit.read_text()
    for place in (broker.store, audit, *(tmp_path / name for name in ("live", "again", "stopped", "restored"))):
        assert open_to_others(place) == []


@pytest.mark.slow
def test_a_folder_that_others_may_use_stays_so_and_is_told_of(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o755)
    broker = Broker(store, logs=tmp_path / "logs", environment=environment_of(SETTINGS))
    with closing(broker):
        launched(broker)
        broker.stop()
    assert stat.S_IMODE(store.stat().st_mode) == 0o755
    assert [each for each in open_to_others(store) if not each.startswith(f"{store} ")] == []
    assert "other users than" not in quarry("doctor", "--store", str(store)).stdout, "what lies in it is not for others"
    (store / "commitlog").chmod(0o755)
    looked = quarry("doctor", "--store", str(store))
    assert f"{store}: other users than" in looked.stdout
    assert f"chmod -R go-rwx {store}" in looked.stdout
