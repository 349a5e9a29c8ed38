"""The recipes that need a jar from Maven Central: they run outside of the sessions of pages, which have no network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.documents.pages import ROOT, blocks
from tests.e2e.broker import PROJECT, clean_environment
from tests.e2e.conftest import QUICK, StartBroker, start_broker

__all__ = ["start_broker"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE: Final = ROOT / "docs" / "spark-recipes.md"
HERE: Final = "tests/documents/test_spark_recipes.py"
NOT_RESOLVED: Final = "unresolved dependency"


def test_bodies_in_avro(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(settings=QUICK)
    broker.administer("topic", "create", "avro", "--queues", "1")
    [recipe] = [block.text for block in blocks(PAGE) if block.orders.get("elsewhere") == HERE]
    assert recipe.count("127.0.0.1:8081") == 2
    done = subprocess.run(
        [sys.executable, "-c", recipe.replace("127.0.0.1:8081", broker.endpoint)],
        cwd=tmp_path,
        env={**clean_environment(), "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if NOT_RESOLVED in done.stderr:
        pytest.skip("Maven Central is not to be reached, or has no such jar")
    assert done.returncode == 0, done.stderr[-4_000:]
    assert "| p4| 8.25|" in done.stdout
