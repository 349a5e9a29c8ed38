"""`quarry pipeline stats` as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.spark_runner import SPARK, quarry
from tests.conftest import GoldenStore
from tests.e2e.broker import Broker
from tests.e2e.broker import quarry as plain_quarry

pytestmark = pytest.mark.timeout(600)
QUEUES = 4
SENT, TAKEN, KEPT = 40, 10, 3


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_stats_are_told_as_text_and_as_a_page(golden_store: GoldenStore, tmp_path: Path) -> None:
    root, page = golden_store("rocks-clean") / "store", tmp_path / "report.html"
    done = quarry("stats", root, "--topic", "acme-orders", "--limit", 2, "--report", page, *SPARK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1,488 messages of 1 topics, ")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["TOPIC", "QUEUE", "MESSAGES", "LOG", "MESSAGES/S"] in lines
    assert sum(line[:1] == ["acme-orders"] for line in lines) > 3
    html = page.read_text()
    assert html.startswith("<!DOCTYPE html>")
    assert html.count("<svg") == 4


@pytest.mark.slow
@pytest.mark.usefixtures("java")
def test_lag_is_what_the_broker_says(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs")
    try:
        broker.start()
        broker.administer("topic", "create", "orders", "--queues", str(QUEUES))
        broker.administer("group", "create", "shop")
        client = ("--endpoint", broker.endpoint)
        words = ["orders", "--group", "shop", "--limit"]
        for arguments in (
            ["produce", "orders", "body", "--count", str(SENT)],
            ["consume", *words, str(TAKEN)],
            ["consume", *words, str(KEPT), "--no-ack", "--invisible", "600"],
        ):
            done = plain_quarry(*arguments, *client)
            assert done.returncode == 0, done.stderr
        latest = broker.administer(
            *("group", "reset-offset", "shop", "--topic", "orders", "--to", "latest", "--dry-run", "--json")
        )
        broker.stop()
    finally:
        broker.close()
    resets = [json.loads(line) for line in latest.splitlines()]
    lag = sum(reset["newOffset"] - reset["previousOffset"] for reset in resets)
    done = quarry("stats", broker.store, "--json", *SPARK)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (shop,) = told["lag"]["groups"]
    assert (shop["group"], shop["topic"], shop["queues"]) == ("shop", "orders", QUEUES)
    assert shop["lag"] == lag == SENT - TAKEN - KEPT
    assert shop["inFlight"] == KEPT
    assert (told["volume"]["messages"], told["topics"][0]["queueCount"]) == (SENT, QUEUES)


def test_a_report_in_a_folder_that_is_none_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = quarry("stats", tmp_path, "--report", tmp_path / "none" / "report.html")
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
