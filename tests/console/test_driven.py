"""Work that a page starts and stays with to its end, on brokers of its own: members, a migration, files that expire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Locator, expect

from quarry_mq.cli.demo import free_ports
from tests.console.chromium import Console, chromium, needs_chromium, window
from tests.e2e.broker import Broker, environment_of
from tests.e2e.members import ClusterOfBrokers, reachable
from tests.hostile.caller import Client
from tests.replicas.copies import Copies

pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.timeout(300)]

SMALL: Final = {
    "store.segment_size": "1MiB",
    "store.durability": "async",
    "limits.body_size": "256KiB",
    "topics.default_queues": 1,
    "delivery.polling_min_ms": 0,
    "network.stop_grace_ms": 500,
    "expiry.start_delay_ms": 3_600_000,
    "expiry.retention_hours": 0.00001,
    "expiry.interval_ms": 100,
    "expiry.pause_ms": 0,
}
PHASES: Final = ("double write", "backfilling", "verified", "reading rocksdb", "rocksdb")
MESSAGES: Final = 40
SIZE: Final = 200_000
"""Five of these fill a segment."""


@contextmanager
def looking(address: str, folder: Path) -> Iterator[Console]:
    """A browser on the console there, which may complain of nothing."""
    with chromium() as browser, window(browser, f"http://{address}", folder / "pictures") as console:
        yield console
        assert console.mistakes == []


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
def broker(tmp_path: Path, address: str) -> Iterator[Broker]:
    """Not started."""
    environment = environment_of({**SMALL, "network.console": address})
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment)
    yield broker
    broker.close()


def fill(broker: Broker) -> None:
    with Client(broker.endpoint) as client:
        client.subscribe("slow", "orders")
        for number in range(MESSAGES):
            client.send("orders", f"m{number:03d}", SIZE)
        client.receive("slow", "orders")


def test_a_member_is_drained_activated_and_removed_once_it_is_gone(tmp_path: Path, address: str) -> None:
    cluster = ClusterOfBrokers(tmp_path)
    try:
        first = cluster.make("quarry-0")
        cluster.brokers.append(first)
        first.start(settings={**cluster.settings("quarry-0"), "network.console": address})
        second = cluster.add()
        cluster.agree(reachable, ["quarry-0", "quarry-1"])
        with looking(address, tmp_path) as console:
            console.go("members")
            row = console.page.locator("tbody tr", has_text="quarry-1")
            for step, state in (("Drain", "draining"), ("Activate", "active")):
                row.get_by_role("button", name=step).click()
                console.confirm(step)
                expect(row).to_contain_text(state)
                expect(row.get_by_role("button", name="Activate" if step == "Drain" else "Drain")).to_be_visible()
                expect(console.page.locator("#told")).to_contain_text(f"{step}: ✓ it is {state}")
            expect(row.get_by_role("button", name="Remove")).to_have_count(0)
            console.assert_well_made()
            console.picture("members")
            second.stop()
            row.get_by_role("button", name="Remove").click(timeout=30_000)
            expect(row).to_contain_text("✖ no")
            console.confirm("Remove", typed="quarry-1")
            expect(row).to_have_count(0)
            expect(console.page.locator("#told")).to_contain_text("Remove: ✓ removed")
            console.go("")
            console.unfold("Members and totals")
            expect(console.page.get_by_role("table", name="Members of the cluster").locator("tbody tr")).to_have_count(
                1
            )
    finally:
        cluster.close()


def test_the_copies_of_a_store_are_shown_with_their_lag(tmp_path: Path, address: str) -> None:
    copies = Copies(tmp_path)
    try:
        copies["a"].start(settings={"network.console": address})
        copies.start("b")
        with looking(address, tmp_path) as console:
            console.go("storage")
            rows = console.page.get_by_role("table", name="Copies of this store").locator("tbody tr")
            expect(rows).to_have_count(2)
            expect(rows.nth(0)).to_contain_text("primary")
            expect(rows.nth(1)).to_contain_text("follows")
            console.assert_well_made()
            console.picture("copies")
            copies["b"].kill()
            expect(rows.nth(1)).to_contain_text("away", timeout=30_000)
    finally:
        copies.close()


def test_a_migration_is_walked_there_with_one_step_back(broker: Broker, address: str, tmp_path: Path) -> None:
    broker.start(settings={"consume_queue.mode": "file"})
    fill(broker)
    broker.restart()
    with looking(address, tmp_path) as console:
        console.go("migration")
        for phase in PHASES[:4]:
            step(console, phase)
        console.press("Roll back to verified")
        console.confirm("Roll back")
        expect(outcome(console)).to_contain_text("✓ now in verified")
        for phase in PHASES[3:]:
            step(console, phase)
        console.says(re.compile("No step back"))
        expect(console.page.get_by_role("table", name="Steps taken").locator("tbody tr")).to_have_count(7)
        console.says("no mismatch")
        expect(console.page.locator(".steps .good")).to_have_count(5)
        console.assert_well_made()
        console.picture("migration")


def step(console: Console, phase: str) -> None:
    """Take the step to this phase and see it taken."""
    console.press(f"Go on to {phase}")
    console.confirm("Take the step", typed="rocksdb" if phase == "rocksdb" else None)
    expect(outcome(console)).to_contain_text(f"✓ now in {phase}", timeout=60_000)
    expect(console.page.locator(".steps [aria-current]")).to_contain_text(phase)


def outcome(console: Console) -> Locator:
    return console.page.locator("section", has=console.page.get_by_role("heading", name="Next step"))


def test_files_expire_after_a_dry_run_that_says_who_has_not_read_them(
    broker: Broker, address: str, tmp_path: Path
) -> None:
    broker.start()
    fill(broker)
    with looking(address, tmp_path) as console:
        console.go("storage")
        segments = console.page.get_by_role("table", name="Segments, the oldest first").locator("tbody tr")
        before = segments.count()
        assert before >= MESSAGES // 5 - 1
        expect(segments.first).to_contain_text("goes next")
        console.press("Dry run")
        going = console.page.get_by_role("table", name="Files that would be deleted").locator("tbody tr")
        expect(going.first).to_be_visible()
        gone = going.count()
        expect(console.page.get_by_role("table", name="Groups that would lose messages")).to_contain_text("slow")
        console.picture("expiry")
        assert segments.count() == before
        console.press(f"Delete {gone} files now")
        console.confirm("Delete files")
        console.says(f"✓ {gone} files are deleted.")
        expect(segments).to_have_count(before - gone)
        console.page.locator("section", has_text="Time spans by queue").get_by_label("Topic").fill("orders")
        console.page.locator("section", has_text="Time spans by queue").get_by_role("button", name="Show").click()
        spans = console.page.get_by_role("table", name="Queues of orders").locator("tbody tr")
        expect(spans.locator("td[data-label='First offset']")).to_have_text(str(5 * gone))
