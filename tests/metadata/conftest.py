"""Both engines: every metadata test runs over the real database and the one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.kv import KeyValueEngine
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.store.state.identity import FAMILIES, open_state_engine


@pytest.fixture(params=["memory", "rocksdb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[KeyValueEngine]:
    opened: KeyValueEngine
    if request.param == "memory":
        opened = MemoryEngine(FAMILIES, write_ahead_log=True)
    else:
        opened = open_state_engine(tmp_path / "quarry", create=True)
    yield opened
    opened.close()
