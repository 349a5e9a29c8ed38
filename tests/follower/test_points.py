"""A store that is followed can be verified meanwhile; what a killed command leaves is removed."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.errors import Busy, StoreUnusable
from quarry_mq.store.follower import FollowedStore, PointsOnRequest, follow, is_followed, point_of_follower
from quarry_mq.store.follower import points as points_of_followers
from quarry_mq.store.fs import PosixCopyingDisk, PosixDisk
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.opening.open_store import OpenStore, recover_store
from quarry_mq.store.settings import StoreSettings
from tests.cli.offline_runner import refusal
from tests.follower.points import verified_while
from tests.follower.test_followed_store import SEGMENT_SIZE, push, send_some
from tests.store.test_deletions import opened


class _DiskWithoutLinks(PosixCopyingDisk):
    def link_file(self, source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links here", str(target))


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[OpenStore]:
    store = opened(tmp_path / "primary")
    yield store
    store.close()


def followed(root: Path, disk: PosixCopyingDisk | None = None) -> FollowedStore:
    disk, clock = disk or PosixCopyingDisk(), SystemClock()
    settings = StoreSettings(root=root, segment_size=SEGMENT_SIZE, units_per_file=16)
    kind = StoreKind.ROCKETMQ_ROCKSDB
    store = recover_store(settings, disk=disk, clock=clock, report=lambda _: None, followed=kind)
    return follow(store, points=PointsOnRequest(disk, root, clock))


def points_in(root: Path) -> list[Path]:
    return [path for path in StorePaths(root).backup_points.iterdir() if path.name not in {"follower", "wanted"}]


def filled(root: Path, primary: OpenStore, chance: Random) -> FollowedStore:
    """A store that has all of the primary."""
    store = followed(root)
    send_some(primary, chance)
    push(primary, store, primary.messages.appended_up_to, chance)
    store.commit()
    return store


def test_a_store_is_verified_while_it_grows_and_expires(tmp_path: Path, primary: OpenStore) -> None:
    root, chance = tmp_path / "follower", Random(5)
    store = filled(root, primary, chance)
    ends: list[int] = []

    def step() -> None:
        store.make_wanted_point()
        if points_in(root) and len(ends) < 60:
            send_some(primary, chance)
            push(primary, store, primary.messages.appended_up_to - chance.randrange(2_000), chance)
            store.commit()
            store.retire(PhysicalOffset(max(0, store.dispatched_up_to - 2 * SEGMENT_SIZE)))
            ends.append(store.dispatched_up_to)

    for _ in range(3):
        ends.clear()
        begin, end = store.minimum, store.dispatched_up_to
        found = verified_while(root, step)
        assert found.agrees, found.differences
        assert (found.log_begin, found.log_end) == (begin, end)
        assert ends[-1] > end
        assert points_in(root) == [], "a point that nobody wants is removed"
    assert store.minimum > 0
    store.close()
    assert not is_followed(PosixDisk(), root)


def test_damage_below_the_point_is_found(tmp_path: Path, primary: OpenStore) -> None:
    root = tmp_path / "follower"
    store = filled(root, primary, Random(6))
    (segment,) = (path for path in StorePaths(root).commit_log.iterdir() if path.is_file())
    with segment.open("r+b") as file:
        file.seek(200)
        file.write(b"damage")
    found = verified_while(root, store.make_wanted_point)
    assert not found.agrees
    store.close()


def test_a_killed_command_and_a_killed_process_leave_nothing(tmp_path: Path, primary: OpenStore) -> None:
    root, chance = tmp_path / "follower", Random(7)
    store = followed(root)
    send_some(primary, chance)
    push(primary, store, primary.messages.appended_up_to, chance)
    store.commit()
    store.make_wanted_point()
    lock = PosixDisk().lock(StorePaths(root).backup_points / "wanted")
    store.make_wanted_point()
    assert len(points_in(root)) == 2
    lock.release()
    store.make_wanted_point()
    assert points_in(root) == [], "as if the command was killed"
    store.close()
    point = StorePaths(root).backup_points / "1700000000000"
    point.mkdir()
    (point.parent / "made").write_text("{}")
    store = followed(root)
    assert points_in(root) == [], "as if the process was killed"
    store.close()


def test_a_command_hears_when_the_store_is_opened_again(tmp_path: Path) -> None:
    root = tmp_path / "follower"
    store = followed(root)
    lock = PosixDisk().lock(StorePaths(root).backup_points / "wanted")
    store.make_wanted_point()
    lock.release()
    with (
        pytest.raises(Busy, match="opened again meanwhile: try again"),
        point_of_follower(PosixDisk(), root, SystemClock(), lambda _: None),
    ):
        store.close()


def test_a_command_hears_why_there_is_no_point(tmp_path: Path, primary: OpenStore) -> None:
    root = tmp_path / "follower"
    store = followed(root, _DiskWithoutLinks())
    send_some(primary, Random(8))
    push(primary, store, primary.messages.appended_up_to, Random(8))
    with pytest.raises(StoreUnusable, match="no links here"):
        verified_while(root, store.make_wanted_point)
    assert points_in(root) == []
    store.close()


def test_a_process_that_is_busy_for_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points_of_followers, "WAIT_S", 0.1)
    store = followed(tmp_path)
    store.make_wanted_point()
    assert "has made no point within" in refusal(2, "verify", tmp_path)
    store.close()
    assert "has made no point" not in refusal(2, "verify", tmp_path)
