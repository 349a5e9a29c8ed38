"""The verification of a store while it is followed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.follower import point_of_follower
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.verify import VerifyReport, verify


def _verified(root: Path) -> VerifyReport:
    disk = PosixDisk()
    with (
        point_of_follower(disk, root, SystemClock(), lambda _: None) as point,
        OfflineStore.open(disk, point.root) as store,
    ):
        store.log_limit = point.log_end
        return verify(store, lambda _: None)


def verified_while(root: Path, step: Callable[[], None]) -> VerifyReport:
    """Verify as `quarry verify` does, from another thread, while this one does steps of the process that follows."""
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_verified, root)
        while not found.done():
            step()
            time.sleep(0.001)
        step()
        return found.result()
