"""Fixtures of the tests of clusters: each is one async test against members of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from tests.cluster.brokers import BrokerCluster
from tests.conformance.broker import run

AsyncTest = Callable[[BrokerCluster], Coroutine[object, object, None]]
WithCluster = Callable[[AsyncTest], None]


@pytest.fixture
def with_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithCluster:
    """`with_cluster(test)` runs `test(cluster)`, which starts its members itself."""

    def start(test: AsyncTest) -> None:
        async def whole() -> None:
            cluster = BrokerCluster(tmp_path, monkeypatch)
            try:
                await test(cluster)
            finally:
                await cluster.close()

        run(whole())

    return start
