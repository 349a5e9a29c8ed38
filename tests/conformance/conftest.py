"""Fixtures of the conformance tests: each is one async test against a broker of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import pytest

from tests.conformance.broker import RunningBroker, run, running_broker

AsyncTest = Callable[[RunningBroker], Coroutine[object, object, None]]
WithBroker = Callable[..., None]


both_ways = pytest.mark.parametrize("native", [True, False], ids=["as installed", "python"])
"""Of a module whose calls may be served by the native part: once with it, if it is there, and once without."""


@pytest.fixture
def native() -> bool:
    return True


@pytest.fixture
def with_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool) -> WithBroker:
    """`with_broker(test, delivery={…})` runs `test(broker)` against a running broker."""

    def start(test: AsyncTest, **changes: Mapping[str, object]) -> None:
        async def whole() -> None:
            async with running_broker(tmp_path, monkeypatch, **{"broker": {"native": native}, **changes}) as broker:
                await test(broker)

        run(whole())

    return start
