"""Everything in one thread, so that a seed stands for one order of steps, and without the log of a thousand starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.commitlog.records import SameThread


class AtOnce(SameThread):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next segment is made, and bytes are read ahead of a scan, by the thread that asks for it."""
    for module in ("quarry_mq.store.commitlog.allocate", "quarry_mq.store.scan.log"):
        monkeypatch.setattr(f"{module}.ThreadPoolExecutor", AtOnce)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The native part's table is warmed up in steps, with sends and deletions between them."""
    monkeypatch.setattr("quarry_mq.store.consumequeue.rocks.bounds.ROWS_PER_PAGE", 3)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield
