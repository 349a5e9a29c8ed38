"""Pages of a cluster, in Chromium: sums and rows of all members, and a member that goes away before one's eyes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from quarry_mq.cli.demo import free_ports
from tests.console.chromium import PHONE, WIDE, chromium, needs_chromium, window
from tests.e2e.broker import Broker
from tests.e2e.members import ClusterOfBrokers, reachable
from tests.hostile.caller import Client

pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.timeout(300)]

PAGES: Final = (
    "",
    "topics",
    "topics/orders",
    "topics/orders?tab=queues",
    "groups/slow",
    "groups/slow?tab=queues",
    "clients",
    "messages?topic=orders",
    "tail?topic=orders",
    "trace?topic=orders&key=k",
    "dead-letters",
    "dead-letters/slow",
    "pending",
    "jobs",
    "storage",
    "storage?member=quarry-1",
    "stages",
    "settings?member=quarry-1",
    "migration",
    "lite?topic=orders",
)
SENT: Final = {"quarry-0": 2, "quarry-1": 3}


def fill(broker: Broker, name: str) -> None:
    with Client(broker.endpoint) as client:
        client.subscribe("slow", "orders")
        for number in range(SENT[name]):
            client.send("orders", f"{name} {number}", 20)
        client.receive("slow", "orders")


def test_pages_show_all_members_and_name_the_one_that_goes_away(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    cluster = ClusterOfBrokers(tmp_path)
    try:
        first = cluster.make("quarry-0")
        cluster.brokers.append(first)
        first.start(settings={**cluster.settings("quarry-0"), "network.console": address})
        second = cluster.add()
        cluster.agree(reachable, ["quarry-0", "quarry-1"])
        first.administer("topic", "create", "orders", "--queues", "1")
        fill(first, "quarry-0")
        fill(second, "quarry-1")
        with chromium() as browser, window(browser, f"http://{address}", tmp_path / "pictures", width=WIDE) as console:
            page = console.page
            for path in PAGES:
                console.go(path)
                console.assert_well_made()
                console.assert_text_stands_out()
                expect(page.locator(".missing-parts")).to_have_count(0)
            console.go("topics")
            expect(page.locator("tbody tr", has_text="orders").locator("td").nth(3)).to_have_text("5")
            console.go("topics/orders")
            shares = page.get_by_role("table", name="orders by member").locator("tbody tr")
            expect(shares.nth(0)).to_contain_text("quarry-0")
            expect(shares.nth(1).locator("td").nth(1)).to_have_text("3")
            console.go("messages?topic=orders")
            rows = page.get_by_role("table", name="Messages").locator("tbody tr")
            expect(rows).to_have_count(5)
            expect(rows.nth(0)).to_contain_text("quarry-1 2")
            rows.nth(0).locator("a").first.click()
            page.get_by_role("link", name="Who got it, and sending it once more").click()
            console.settle()
            expect(page.locator("main")).to_contain_text("quarry-1 2")
            assert "member=quarry-1" in page.url
            console.go("groups/slow?tab=reset")
            console.fill("Topic", "orders")
            page.locator("main").get_by_label("Where to").select_option("earliest")
            console.press("Dry run")
            expect(page.get_by_role("table", name="Queues before and after").locator("tbody tr")).to_have_count(2)
            console.press("Reset 2 queues now")
            console.says("2 queues were moved")
            second.stop()
            console.go("members")
            expect(page.locator("tbody tr", has_text="quarry-1")).to_contain_text("✖ no", timeout=30_000)
            console.go("topics/orders")
            console.says("quarry-1 does not answer: what it holds is missing here")
            expect(shares.nth(1)).to_have_class("past")
            for path in ("messages?topic=orders", "tail?topic=orders", "clients", "pending", "jobs", "settings"):
                console.go(path)
                expect(page.locator(".missing-parts").first).to_contain_text("quarry-1")
                console.assert_text_stands_out()
            assert console.mistakes == []
            with window(browser, f"http://{address}", tmp_path / "phone", width=PHONE) as phone:
                for path in ("topics/orders", "messages?topic=orders", "storage", "pending"):
                    phone.go(path)
                    phone.assert_well_made()
                assert phone.mistakes == []
    finally:
        cluster.close()
