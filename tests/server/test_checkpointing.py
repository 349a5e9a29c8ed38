"""The checkpoint is kept up once a second, whatever the disk says to it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from quarry_mq.kv import EngineCorrupt, EngineFull, KvError
from quarry_mq.server.maintenance.maintenance import CheckpointKeeper


def run_until(save: Callable[[int], None], saves: int) -> tuple[list[Exception], list[str]]:
    """Let the keeper save at least so often; returns what it called fatal and what it logged."""
    fatal: list[Exception] = []
    done = 0

    async def test() -> None:
        enough = asyncio.Event()
        loop = asyncio.get_running_loop()

        def counted() -> None:
            nonlocal done
            done += 1
            if done > saves:  # so what came of those before has been handled
                loop.call_soon_threadsafe(enough.set)
            save(done)

        task = loop.create_task(CheckpointKeeper(counted, poisoned=fatal.append, interval_s=0.001).run())
        await enough.wait()
        task.cancel()
        await asyncio.wait([task])

    with capture_logs() as lines:
        asyncio.run(test())
    return fatal, [str(line["error"]) for line in lines]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), EngineFull("no room")])
def test_a_disk_that_refuses_is_told_once_and_tried_again(error: Exception) -> None:
    saved: list[int] = []

    def save(number: int) -> None:
        if number < 4:
            raise error
        saved.append(number)

    fatal, logged = run_until(save, 6)
    assert saved[:2] == [4, 5]
    assert (fatal, logged) == ([], [str(error)])


def test_a_database_that_fails_is_fatal() -> None:
    error: KvError = EngineCorrupt("checksum mismatch")

    def save(_: int) -> None:
        raise error

    fatal, _ = run_until(save, 1)
    assert fatal[0] is error
