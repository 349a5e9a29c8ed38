from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.broker import run, running_broker
from tests.lite_topics.broker import SECTIONS, Test, WithBroker


@pytest.fixture
def with_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WithBroker:
    """Run a test on a broker that looks for lite topics to remove when the test says so."""

    def with_broker(test: Test, **sections: dict[str, object]) -> None:
        merged = {name: {**SECTIONS.get(name, {}), **sections.get(name, {})} for name in {*SECTIONS, *sections}}

        async def whole() -> None:
            async with running_broker(tmp_path, monkeypatch, **merged) as broker:
                await test(broker)

        run(whole())

    return with_broker
