"""An operator's way through the console, in Chromium, on a broker with data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Route, expect

from quarry_mq.cli.demo import free_ports
from tests.console.chromium import PHONE, WIDE, Console, chromium, needs_chromium, window
from tests.console.shop import DEAD, HOSTILE, ORDERS, Sent, Shop
from tests.e2e.broker import Broker, environment_of

pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.timeout(600)]

SETTINGS: Final = {
    "store.segment_size": 16 * 1024 * 1024,
    "delivery.polling_min_ms": 100,
    "index.tiered": True,
}

PAGES: Final = {
    "overview": "",
    "topics": "topics",
    "topic": "topics/orders",
    "groups": "groups",
    "group": "groups/billing",
    "messages": "messages?topic=orders",
    "messages-by-key": "messages?topic=orders&how=key&key=order-7",
    "messages-lite": "messages?topic=sessions&lite=device-1",
    "message": "message?topic=orders&queue=0&offset=1",
    "tail": "tail?topic=orders",
    "trace": "trace?topic=orders&key=order-7",
    "dead-letters": "dead-letters",
    "dead-letters-of-group": "dead-letters/billing",
    "pending": "pending",
    "lite": "lite?topic=sessions",
    "clients": "clients",
    "jobs": "jobs",
    "storage": "storage",
    "migration": "migration",
    "members": "members",
    "users": "users",
    "settings": "settings",
}


class Office(NamedTuple):
    """A browser before a broker's console."""

    browser: Browser
    url: str
    shop: Shop
    pictures: Path


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    folder = tmp_path_factory.mktemp("console")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environment = environment_of({**SETTINGS, "network.console": address})
    broker = Broker(folder / "store", logs=folder / "logs", environment=environment)
    try:
        shop = Shop(broker.start())
        shop.open(folder / "home")
        with chromium() as browser:
            yield Office(browser, f"http://{address}", shop, folder / "pictures")
        shop.close()
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def console(office: Office, tmp_path: Path) -> Iterator[Console]:
    """Nothing that a test does may make the browser complain."""
    with window(office.browser, office.url, tmp_path) as opened:
        yield opened
        assert opened.mistakes == []


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_each_page_is_well_made(office: Office, tmp_path: Path, width: int) -> None:
    """Pictures of all pages are in the test's folder."""
    with window(office.browser, office.url, tmp_path, width=width) as console:
        for name, path in PAGES.items():
            console.go(path)
            console.picture(name)
            console.assert_well_made()
            console.assert_keyboard_reaches_all()
            assert console.page.title() != "1", f"{name}: a message's body was taken for markup"
    assert console.mistakes == []


def test_the_overview_tells_the_last_hour(console: Console) -> None:
    console.go("")
    console.says("Messages per second")
    chart = console.page.locator(".plot").first
    chart.focus()
    chart.press("End")

    readout = console.page.locator(".readout").first
    expect(readout).to_have_text(re.compile(r"\d\d:\d\d:\d\d: sent .*, received .*"))
    console.page.locator(".values summary").first.click()
    expect(
        console.page.get_by_role("region", name="Messages per second, values").locator("tbody tr").first
    ).to_be_visible()


def test_what_is_not_known_is_said_to_be_unknown(console: Console) -> None:
    console.go("")

    row = console.page.locator("tr", has_text="alone").first
    cell = row.locator("td[data-label='Sent yesterday']")
    expect(cell).to_have_text("unknown")
    cell.locator(".unknown").focus()
    shown = cell.locator(".unknown").evaluate("(one) => getComputedStyle(one, '::after').content")
    assert "attr" not in shown
    assert len(shown) > len('": "')


def test_what_waits_is_at_least_so_much_where_not_all_groups_are_counted(console: Console) -> None:
    def tell_of_a_part(route: Route) -> None:
        answer = route.fetch()
        told = answer.json()
        overview = told["members"][0]["overview"]
        overview.pop("lagIsWhole", None)
        overview |= {"readyMessages": "1234", "inFlightMessages": "5", "lagMs": "7200000"}
        route.fulfill(response=answer, json=told)

    console.page.route("**/OverviewService/ListOverviews", tell_of_a_part)
    console.go("")

    expect(console.page.locator("td[data-label='Lag']")).to_have_text("at least 1,234, 2 h")
    for name, text in {"Ready messages": "1,234", "In flight": "5", "Oldest waiting for": "2 h"}.items():
        expect(console.page.locator("dt", has_text=name).locator("+ dd")).to_have_text(f"at least {text}")


def test_a_topic_is_made_written_read_and_deleted(console: Console, office: Office) -> None:
    console.go("topics")
    console.press("Create topic")
    console.fill("Name", "parcels", within="dialog")
    console.press("Create", within="dialog")
    expect(console.page.locator("h1")).to_have_text("parcels")
    console.settle()

    console.fill("Body", '{"parcel": 12345678901234567890, "to": {"city": "Zug"}}')
    console.fill("Key", "parcel-1")
    console.press("Send")
    link = console.page.get_by_role("link", name=re.compile("The message is in queue"))
    expect(link).to_be_visible(timeout=20_000)
    link.click()
    console.settle()
    expect(console.page.locator(".tree")).to_contain_text("12345678901234567890")
    console.press("Hex")
    expect(console.page.locator("pre.hex")).to_contain_text("7b 22 70 61")

    console.press("Send once more")
    console.confirm("Send")
    console.says("the job is done")
    assert office.shop.messages("parcels") == 2

    console.go("topics/parcels")
    console.press("Delete topic")
    expect(console.page.locator("dialog")).to_contain_text("2 messages in")
    console.confirm("Delete the topic", typed="parcels")
    expect(console.page.locator("h1")).to_have_text("Topics")


def test_messages_of_strangers_stay_text(console: Console) -> None:
    console.go("messages?topic=orders&how=key&key=hostile")

    expect(console.page.locator("main")).to_contain_text(HOSTILE)
    assert console.page.locator("main img").count() == 0


def test_messages_are_filtered_and_paged(console: Console) -> None:
    console.go("messages?topic=orders&expression=paid&limit=20")
    rows = console.page.locator("main tbody tr")
    expect(rows).to_have_count(20)
    assert set(console.page.locator("td[data-label='Tag']").all_inner_texts()) == {"paid"}

    console.press("Next")
    expect(console.page.locator("main")).to_contain_text("end reached")
    expect(rows).to_have_count(ORDERS // 2 - 20)


def test_the_group_beside_the_topic_and_its_lag(console: Console) -> None:
    console.go("topics?contains=ORD")

    row = console.page.locator("tbody tr", has_text="orders")
    expect(row).to_contain_text(re.compile(r"audit: \d+ ready, oldest waits"))


def test_offsets_are_reset_after_a_dry_run(console: Console) -> None:
    console.go("groups/audit")
    section = console.page.locator("section", has=console.page.get_by_role("heading", name="Reset offsets"))
    section.get_by_label("Topic").fill("orders")
    section.get_by_label("Where to").select_option("latest")
    section.get_by_role("button", name="Dry run").click()
    expect(section).to_contain_text("nothing has changed yet")
    expect(section.locator("tbody tr")).to_have_count(2)
    before = section.locator("td[data-label='Before']").all_inner_texts()

    section.get_by_role("button", name="Reset 2 queues now").click()
    expect(section).to_contain_text("2 queues were moved")
    section.get_by_label("Where to").select_option("earliest")
    section.get_by_role("button", name="Dry run").click()
    expect(section).to_contain_text("back by")
    assert section.locator("td[data-label='Before']").all_inner_texts() != before


def test_dead_letters_are_sent_again_and_the_job_is_followed(console: Console, office: Office) -> None:
    assert office.shop.dead_letters("billing") == DEAD
    console.go("dead-letters/billing")
    console.page.get_by_label(re.compile("select the dead letter")).first.check()
    console.says("1 selected")
    console.press("Send all that were never sent again")
    console.confirm("Send all")
    console.says("the job is done")

    assert office.shop.dead_letters("billing") == 0
    console.go("jobs")
    console.says("resend-dead-letters")


def test_the_tail_shows_messages_as_they_come(console: Console, office: Office) -> None:
    console.go("tail?topic=settled")
    console.says("live")
    office.shop.send("settled", "fresh from the press", Sent(message_group="a"))
    console.says("fresh from the press")
    console.press("Pause")
    office.shop.send("settled", "while paused", Sent(message_group="a"))
    console.says("1 held while paused")
    console.press("Go on")
    console.says("while paused")


def test_a_setting_is_changed_and_reset(console: Console) -> None:
    console.go("settings")
    console.fill("Filter", "retention_hours")
    row = console.page.locator("tbody tr", has_text="expiry.retention_hours")
    expect(console.page.locator("tbody tr")).to_have_count(1)
    row.get_by_role("button", name="Change").click()
    console.fill("Value", "nonsense", within="dialog")
    console.press("Set", within="dialog")
    expect(console.page.locator("dialog")).to_contain_text("expiry.retention_hours")
    console.fill("Value", "48", within="dialog")
    console.press("Set", within="dialog")
    expect(row).to_contain_text("changed live")
    row.get_by_role("button", name="Reset").click()
    console.confirm("Reset")
    expect(row).not_to_contain_text("changed live")
    # The browser tells of each answer that refuses.
    console.mistakes[:] = [one for one in console.mistakes if "SettingsService/SetSetting" not in one]


def test_the_box_in_the_header_goes_to_a_topic_or_a_group(console: Console) -> None:
    console.go("")
    box = console.page.get_by_label("Go to a topic or group")
    for name in ("orders", "billing"):
        box.fill(name)
        box.press("Enter")
        expect(console.page.locator("h1")).to_have_text(name)
    console.mistakes[:] = [one for one in console.mistakes if "AdminService/GetTopic" not in one]


def test_the_list_of_pages_folds_on_a_phone(office: Office, tmp_path: Path) -> None:
    with window(office.browser, office.url, tmp_path, width=PHONE) as console:
        console.go("")
        menu = console.page.get_by_role("button", name="Menu")
        expect(console.page.get_by_role("link", name="Storage")).to_be_hidden()
        menu.press("Enter")
        expect(menu).to_have_attribute("aria-expanded", "true")
        console.page.get_by_role("link", name="Storage").click()
        expect(console.page.locator("h1")).to_have_text("Storage")
        expect(menu).to_have_attribute("aria-expanded", "false")
