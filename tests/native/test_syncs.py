"""The thread that makes files durable: what it tells, when, and that it ends."""

from __future__ import annotations

import errno
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from quarry_mq.store.native import Native

NAME = "log-flush"


def test_it_tells_of_each_file_in_the_order_in_which_they_were_asked_for(native: Native, tmp_path: Path) -> None:
    thread = native.SyncThread()
    with (tmp_path / "log").open("wb") as file:
        file.write(b"record")
        file.flush()
        assert select.select([thread], [], [], 0)[0] == [], "nothing was asked for"
        for number in (file.fileno(), 1 << 20, file.fileno()):
            thread.start(number)
        assert [thread.finish() for _ in range(3)] == [0, errno.EBADF, 0]
        assert select.select([thread], [], [], 0)[0] == []


def test_whoever_listens_is_woken(native: Native, tmp_path: Path) -> None:
    thread = native.SyncThread()
    with (tmp_path / "log").open("wb") as file:
        thread.start(file.fileno())
        assert select.select([thread], [], [], 10)[0] == [thread]
        assert thread.finish() == 0


def test_what_cannot_be_made_durable_is_said_by_its_number(native: Native) -> None:
    thread = native.SyncThread()
    with open("/dev/null", "wb") as file:
        thread.start(file.fileno())
        assert thread.finish() == errno.EINVAL


def test_it_ends_with_its_last_user_and_not_before(native: Native) -> None:
    before = _running()
    thread = native.SyncThread()
    _await(lambda: len(_running() - before) == 1)
    own = _running() - before
    with pytest.raises(OverflowError):
        thread.start(1 << 40)
    assert own <= _running()
    del thread
    _await(lambda: not own & _running())


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, _running()
        time.sleep(0.01)


def _running() -> set[str]:
    """The numbers of these threads. Those of earlier tests may end at any time."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == NAME:
                found.add(task.name)
    return found
