"""Everything in one thread, so that a seed stands for one order of steps, and without the log of a thousand starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.commitlog.records import SameThread


class AtOnce(SameThread):
    def __init__(self, **_: Any) -> None:
        super().__init__()


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next segment is made by the thread that asks for it."""
    monkeypatch.setattr("store.commitlog.allocate.ThreadPoolExecutor", AtOnce)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield
