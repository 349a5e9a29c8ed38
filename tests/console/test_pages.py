"""An operator's way through the console, in Chromium, on a broker with data."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Route, expect

from quarry_mq.cli.demo import free_ports
from tests.console.chromium import PHONE, WAIT_MS, WIDE, Console, chromium, needs_chromium, window
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
    "stages": "stages",
    "topics": "topics",
    "topic": "topics/orders",
    "topic-queues": "topics/orders?tab=queues",
    "topic-send": "topics/orders?tab=send",
    "groups": "groups",
    "group": "groups/billing",
    "group-queues": "groups/billing?tab=queues",
    "group-reset": "groups/billing?tab=reset",
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
    console.unfold("The last hour in charts")
    console.says("Messages per second")
    console.page.get_by_label("Range").select_option("the last 15 minutes")
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
    console.unfold("Members and totals")

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

    expect(console.page.locator(".card", has_text="Waiting")).to_contain_text("at least 1,234")
    expect(console.page.locator(".card", has_text="Oldest waits")).to_contain_text("at least 2 h")
    console.unfold("Members and totals")
    console.unfold("This broker")
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

    console.page.get_by_role("link", name="Send a message").click()
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


def test_a_message_is_shown_beside_the_list_and_the_keyboard_goes_on_there(console: Console) -> None:
    console.go("messages?topic=orders&how=offset&queue=0&offset=0&limit=20")
    rows = console.page.locator("main tbody tr")
    beside = console.page.get_by_role("complementary")
    link = rows.nth(1).get_by_role("link").first
    link.press("Enter")
    expect(beside.get_by_role("heading", name="Message 0/1")).to_be_focused()
    expect(beside.locator(".tree .key").first).to_be_visible()
    beside.get_by_role("button", name="Next in the list").click()
    expect(beside.get_by_role("heading", name="Message 0/2")).to_be_visible()
    console.assert_well_made()
    console.page.keyboard.press("Escape")
    expect(beside).to_have_count(0)
    expect(rows.nth(2).get_by_role("link").first).to_be_focused()


def test_what_is_shown_is_saved_as_json_and_csv(console: Console, tmp_path: Path) -> None:
    console.go("messages?topic=orders&how=key&key=order-7")
    texts = {}
    for kind in ("JSON", "CSV"):
        with console.page.expect_download() as download:
            console.page.get_by_role("button", name=f"Save what is shown as {kind}").click()
        assert download.value.suggested_filename == f"orders-messages.{kind.lower()}"
        download.value.save_as(tmp_path / kind)
        texts[kind] = (tmp_path / kind).read_text()
    messages, rows = json.loads(texts["JSON"]), list(csv.DictReader(io.StringIO(texts["CSV"])))
    assert [each["keys"] for each in messages] == [["order-7"]]
    assert [each["keys"] for each in rows] == ["order-7"]
    assert messages[0]["body"] == rows[0]["body"] != ""


def test_the_group_beside_the_topic_and_its_lag(console: Console) -> None:
    console.go("topics?contains=ORD")

    row = console.page.locator("tbody tr", has_text="orders")
    expect(row).to_contain_text(re.compile(r"audit: \d+ ready, oldest waits"))


def test_offsets_are_reset_after_a_dry_run(console: Console) -> None:
    console.go("groups/audit?tab=reset")
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


def test_the_search_box_goes_to_topics_groups_pages_and_actions(console: Console) -> None:
    page = console.page
    console.go("")
    for typed, heading in (("orders", "orders"), ("billing", "billing"), ("Time by", "Time by stage")):
        page.keyboard.press("Control+k")
        box = page.get_by_role("combobox", name=re.compile("^Search topics"))
        found = page.get_by_role("listbox", name="Results")
        expect(box).to_be_focused()
        box.fill(typed)
        expect(found.get_by_role("option", selected=True)).to_have_text(re.compile(typed))
        expect(found.get_by_role("option", name=heading, exact=True)).to_be_visible()
        box.press("Enter")
        expect(page.locator("h1")).to_have_text(heading)
    page.get_by_role("button", name="Search or go to").click()
    page.get_by_role("combobox").fill("Create a t")
    page.get_by_role("option", name="Create a topic").click()
    expect(page.get_by_role("heading", name="Create a topic")).to_be_visible()


def test_what_is_not_there_is_said_once(console: Console) -> None:
    for kind in ("topic", "group"):
        console.go(f"{kind}s/nothing")
        console.says(f"There is no {kind} with this name")
        assert console.page.locator("main .notice.bad, main section").count() == 0
    console.mistakes[:] = [one for one in console.mistakes if "AdminService/Get" not in one]


def test_a_page_of_one_thing_has_tabs_with_addresses_and_charts(console: Console) -> None:
    page = console.page
    console.go("groups/audit")
    bar = page.get_by_role("navigation", name="Parts of this page")
    expect(bar.get_by_role("link", name="Overview")).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("figure", name="Waiting messages")).to_contain_text("in flight", timeout=WAIT_MS)
    bar.get_by_role("link", name="Queues").click()
    expect(page.get_by_role("table", name="Queues that audit reads")).to_be_visible()
    assert page.url.endswith("#/groups/audit?tab=queues")
    expect(page.get_by_role("figure")).to_have_count(0)


def test_rows_are_sorted_by_the_head_of_a_column_and_stay_so(console: Console) -> None:
    console.go("topics")
    table = console.page.get_by_role("table", name="Topics")
    head = table.get_by_role("columnheader", name="Messages")

    def counts() -> list[int]:
        titles = table.locator("td[data-label='Messages'] .figure").evaluate_all("all => all.map((one) => one.title)")
        return [int(one.replace(",", "")) for one in titles]

    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert counts() == sorted(counts(), reverse=True)
    assert len(set(counts())) > 2
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert counts() == sorted(counts())
    console.go("groups")
    console.go("topics")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert counts() == sorted(counts())


def test_a_broker_that_is_gone_leaves_its_last_answers_in_grey(console: Console) -> None:
    console.page.clock.install()
    console.go("topics")
    rows = console.page.get_by_role("table", name="Topics").locator("tbody tr")
    before = rows.count()
    console.page.route("**/api/call/**", lambda route: route.abort())
    console.page.clock.fast_forward(11_000)
    console.says(re.compile("No answer from the broker. These figures are of"))
    expect(console.page.locator(".past")).to_have_count(1)
    expect(rows).to_have_count(before)
    console.assert_text_stands_out()
    console.page.unroute("**/api/call/**")
    console.page.clock.fast_forward(11_000)
    expect(console.page.locator(".past, main .notice")).to_have_count(0)
    console.mistakes.clear()


@pytest.mark.parametrize("kind", ["topics", "groups"])
def test_where_there_is_nothing_one_sees_how_to_begin(console: Console, kind: str) -> None:
    empty = {kind: [], "matching": "0", "hasMore": False}
    console.page.route("**/*Service/List*Figures", lambda route: route.fulfill(json=empty))
    console.go(kind)
    expect(console.page.get_by_role("heading", name=f"No {kind} yet")).to_be_visible()
    expect(console.page.get_by_label("program", exact=True)).to_contain_text(
        re.compile(r'ClientConfiguration\("127.0.0.1:\d+"')
    )
    console.assert_well_made()
    console.assert_text_stands_out()


def test_a_theme_is_chosen_and_kept(console: Console) -> None:
    back = "getComputedStyle(document.documentElement).backgroundColor"
    console.go("")
    colours = [console.page.evaluate(back)]
    for chosen in ("light", "dark"):
        console.page.get_by_role("button", name=re.compile(f"^Theme: .*Change it to {chosen}")).click()
        colours.append(console.page.evaluate(back))
    console.page.reload()
    console.settle()
    assert colours[0] == colours[1] != colours[2] == console.page.evaluate(back)


def test_pages_that_do_not_apply_are_left_out_of_the_list(console: Console) -> None:
    """The broker is alone, asks nobody who calls, and has lite topics."""
    console.go("")
    pages = console.page.get_by_role("navigation", name="Pages")
    expect(pages.get_by_role("link", name="Lite topics")).to_be_visible()
    expect(pages.get_by_role("link", name="Topics").first).to_have_text(re.compile(r"Topics\d+"))
    for name in ("Members", "Users and rules"):
        expect(pages.get_by_role("link", name=name)).to_have_count(0)
    console.go("members")
    expect(pages.get_by_role("link", name="Members")).to_have_attribute("aria-current", "page")


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
