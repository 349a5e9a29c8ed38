"""Stores and backups with links, pipes and manifests that lie: named, and nothing outside is read or written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from isal import isal_zlib

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.backup import BackupPlan, newest_backup, read_manifest, restore, write_backup
from quarry_mq.store.backup.manifest import MANIFEST_NAME
from quarry_mq.store.backup.plan import BackupPoint, plan_live, plan_offline
from quarry_mq.store.errors import NotAStore, StoreDamaged, StoreUnusable
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset

SEGMENT = 4_096
SECRET = b"not of the store"
LOG = f"commitlog/{0:020d}"
DISK = PosixCopyingDisk()

Change = Callable[[Any], object]


class Place:
    """A store, its backups, and a file of somebody else beside them."""

    def __init__(self, root: Path) -> None:
        self.store, self.backups, self.new, self.secret = (
            root / name for name in ("store", "backups", "new", "secret")
        )
        self.secret.write_bytes(SECRET)
        for number in range(2):
            self.put(f"commitlog/{number * SEGMENT:020d}", bytes(SEGMENT))
        for name in ("CURRENT", "000012.sst"):
            self.put(f"quarry/{name}", name.encode())
        self.put("config/topics.json", b"{}")

    def put(self, path: str, content: bytes) -> Path:
        file = self.store / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    def back_up(self) -> Path:
        bases = [PhysicalOffset(0), PhysicalOffset(SEGMENT)]
        files = plan_offline(DISK, self.store, bases=bases, segment_size=SEGMENT, frozen_below=bases[1])
        plan = BackupPlan(files, False, bases[0], PhysicalOffset(2 * SEGMENT), SEGMENT)
        return write_backup(DISK, plan, self.backups, clock=ManualClock(), report=lambda _: None).directory

    def restore(self, *, may_link: bool = False) -> None:
        restore(DISK, self.backups, self.new, report=lambda _: None, may_link=may_link)

    def rewritten(self, change: Change) -> Path:
        """A backup whose manifest was changed, its checksum with it."""
        directory = self.back_up()
        path = directory / MANIFEST_NAME
        document = json.loads(path.read_bytes())["manifest"]
        change(document)
        text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        path.write_bytes(json.dumps({"manifest": document, "crc32": isal_zlib.crc32(text)}).encode())
        return path


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def leaked(root: Path) -> list[Path]:
    return [
        path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and SECRET in path.read_bytes()
    ]


@pytest.mark.parametrize("at", ["extra", "config/extra", "quarry/000012.sst", LOG, "config", "commitlog"])
def test_a_link_in_a_store_is_named_and_not_followed(place: Place, at: str) -> None:
    victim = place.store / at
    outside = place.secret.parent / "outside"
    outside.mkdir()
    (outside / f"{0:020d}").write_bytes(SECRET)
    if victim.is_dir():
        victim.rename(place.store.parent / "elsewhere")
        victim.symlink_to(outside)
    else:
        victim.unlink(missing_ok=True)
        victim.symlink_to(place.secret)
    with pytest.raises(StoreUnusable, match=f"{victim}: not a regular file"):
        place.back_up()
    assert not leaked(place.backups)


def test_a_loop_of_links_is_named(place: Place) -> None:
    (place.store / "config" / "again").symlink_to(place.store / "config")
    with pytest.raises(StoreUnusable, match="config/again: not a regular file"):
        place.back_up()


@pytest.mark.timeout(20)
def test_a_pipe_in_a_store_keeps_no_backup_waiting(place: Place) -> None:
    os.mkfifo(place.store / "config" / "pipe")
    with pytest.raises(StoreUnusable, match="config/pipe: not a regular file"):
        place.back_up()


@pytest.mark.parametrize("at", ["backup", "backup/point", "backup/point/quarry", "backup/point/quarry/CURRENT", LOG])
def test_links_in_a_live_store_and_in_its_point_are_named(place: Place, at: str) -> None:
    point = BackupPoint(
        name="point",
        root=place.store,
        log_begin=PhysicalOffset(0),
        log_end=PhysicalOffset(2 * SEGMENT),
        segment_size=SEGMENT,
    )
    place.put("backup/point/quarry/CURRENT", b"x")
    assert len(plan_live(DISK, point).files) == 4
    victim = place.store / at
    moved = place.store.parent / "moved"
    victim.rename(moved)
    victim.symlink_to(moved)
    with pytest.raises(StoreUnusable, match=f"{victim}: not a regular file"):
        plan_live(DISK, point)


def test_a_link_in_the_place_of_the_lock_is_named(place: Place) -> None:
    for folder, error in ((place.backups, StoreUnusable), (place.new, NotAStore)):
        if folder is place.new:
            (place.backups / "lock").unlink()
            place.back_up()
        folder.mkdir(exist_ok=True)
        (folder / "lock").symlink_to(place.secret.parent / "made")
        with pytest.raises(error, match=r"lock: (not a regular file|this is a link)"):
            place.back_up() if folder is place.backups else place.restore()
    assert not (place.secret.parent / "made").exists()


@pytest.mark.parametrize("at", ["config/topics.json", "quarry/000012.sst", LOG, "config", "commitlog"])
@pytest.mark.parametrize("may_link", [False, True])
def test_a_link_in_a_backup_is_named_and_not_followed(place: Place, at: str, *, may_link: bool) -> None:
    """Also one that leads to the very content which the manifest promises."""
    directory = place.back_up()
    victim, moved = directory / at, place.secret.parent / "moved"
    victim.rename(moved)
    victim.symlink_to(moved)
    with pytest.raises(StoreDamaged, match=f"{victim}: this is a link"):
        place.restore(may_link=may_link)
    assert not place.new.exists() or not list(place.new.iterdir())


@pytest.mark.timeout(20)
def test_a_pipe_in_a_backup_keeps_no_restore_waiting(place: Place) -> None:
    victim = place.back_up() / "config" / "topics.json"
    victim.unlink()
    os.mkfifo(victim)
    with pytest.raises(StoreDamaged, match=f"{victim}: no file"):
        place.restore()


def test_a_manifest_that_is_a_link_is_not_read(place: Place) -> None:
    path = place.back_up() / MANIFEST_NAME
    moved = path.rename(place.secret.parent / "manifest")
    path.symlink_to(moved)
    with pytest.raises(StoreDamaged, match=f"{path}: not a regular file"):
        place.restore()


def test_a_backup_that_is_a_link_in_a_folder_of_backups_is_none(place: Place) -> None:
    directory = place.back_up()
    elsewhere = directory.rename(place.secret.parent / "elsewhere")
    directory.symlink_to(elsewhere)
    with pytest.raises(NotAStore, match="contains no backup"):
        newest_backup(DISK, place.backups)
    before = sorted(elsewhere.rglob("*"))
    assert place.back_up() != directory
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize(
    "path",
    [
        "//tmp/x",
        "/tmp/x",
        "../x",
        "config/../../x",
        "config/..",
        "./x",
        "config/./x",
        "config//x",
        "config/",
        "",
        "x\0y",
        "lock",
        "restoring/x",
        "backup/x",
    ],
)
def test_a_path_that_leads_elsewhere_is_named(place: Place, path: str) -> None:
    manifest = place.rewritten(lambda document: document["files"][0].update(path=path))
    with pytest.raises(StoreDamaged) as caught:
        place.restore()
    assert str(caught.value).startswith(f"{manifest}: not a manifest: {path!r} is not a path inside a store")
    assert not place.new.exists()


def changed(field: str, value: object) -> Change:
    def change(document: Any) -> None:
        *way, last = field.split(".")
        for part in way:
            document = document[int(part) if part.isdigit() else part]
        document[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize("value", [None, "1", 1.0, True, [], {}, -1, 1 << 63], ids=repr)
@pytest.mark.parametrize("field", ["logBegin", "logEnd", "segmentSize", "createdMs", "files.0.size", "files.0.crc32"])
def test_a_number_of_another_type_is_named(place: Place, field: str, value: object) -> None:
    place.rewritten(changed(field, value))
    said = field.replace("files.0.", "files[0].")
    with pytest.raises(StoreDamaged, match=rf"not a manifest: manifest\.{said.replace('[', '.').replace(']', '.')} is"):
        place.restore()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 7),
        ("live", 1),
        ("live", "true"),
        ("files", {}),
        ("files", "commitlog"),
        ("files.0", "commitlog"),
        ("files.0", None),
        ("files.0.path", 7),
        ("files.0.path", ["a"]),
        ("files.0.frozen", 0),
        ("segmentSize", 0),
    ],
)
def test_a_field_of_another_type_is_named(place: Place, field: str, value: object) -> None:
    place.rewritten(changed(field, value))
    with pytest.raises(StoreDamaged, match=r"not a manifest: manifest\."):
        place.restore()


@pytest.mark.parametrize(
    "text",
    [b"[" * 200_000, b'{"a":' * 200_000, b"7", b"[]", b"null", b"\xff", b'{"manifest":[],"crc32":1}', b'{"crc32":1}'],
    ids=lambda text: repr(text[:12]),
)
def test_a_manifest_that_is_none_is_named(place: Place, text: bytes) -> None:
    path = place.back_up() / MANIFEST_NAME
    path.write_bytes(text)
    with pytest.raises(StoreDamaged, match=f"{path}: not a manifest"):
        read_manifest(DISK, path.parent)


def test_two_files_of_one_path_and_a_file_in_a_file_are_named(place: Place) -> None:
    place.rewritten(lambda document: document["files"].append(document["files"][0]))
    with pytest.raises(StoreDamaged, match="is listed twice"):
        place.restore()
    place.rewritten(
        lambda document: document["files"].append({**document["files"][0], "path": f"{LOG}/x", "frozen": False})
    )
    with pytest.raises(StoreDamaged, match="is both a file and a folder"):
        place.restore()


@pytest.mark.parametrize(
    "path", ["quarry/CURRENT", "config/topics.json", f"commitlog/{2 * SEGMENT:020d}", "000012.sst"]
)
def test_what_a_broker_writes_is_never_linked_whatever_a_manifest_says(place: Place, path: str) -> None:
    """A linked file would be changed in the backup by the broker of the restored store."""
    place.rewritten(lambda document: document["files"][0].update(path=path, frozen=True))
    with pytest.raises(StoreDamaged, match="is listed as frozen, but brokers write to this file"):
        place.restore(may_link=True)


def test_a_sound_backup_is_restored_as_ever(place: Place) -> None:
    place.back_up()
    place.restore(may_link=True)
    paths = StorePaths(place.new)
    assert (paths.quarry / "000012.sst").read_bytes() == b"000012.sst"
    assert len(list(paths.commit_log.iterdir())) == 2
