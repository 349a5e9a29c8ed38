"""The fifteen screens that operators of brokers ask for, by their numbers, each looked at as different people see it.

One after the other with the data of a shop: what the screen is for is on it; the browser complains of nothing; the
keyboard reaches each control; text stands out from what is behind it in light and dark; states have words besides their
colours; nothing is wider than a phone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Final

import grpc
import pytest
from playwright.sync_api import Browser, expect

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.store.security.sealer import new_key
from tests.conformance.client import consumer_settings
from tests.console.chromium import PHONE, WIDE, Console, Scheme, chromium, needs_chromium, window
from tests.console.shop import DEAD, ORDERS, WAITING, Sent, Shop
from tests.e2e import languages
from tests.e2e.broker import Broker, environment_of
from tests.e2e.clients import Clients
from tests.hostile.caller import Client

pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.timeout(600)]

SETTINGS: Final = {"store.segment_size": 16 * 1024 * 1024, "delivery.polling_min_ms": 100, "index.tiered": True}


@dataclass(frozen=True, slots=True)
class Screen:
    """`path`: of the page. `says`: what must be on it, as texts or patterns, of its main part. `folds`: headings
    of what is unfolded first. `beside`: another tab, and what must be on it.
    """

    number: int
    name: str
    path: str
    says: tuple[str, ...]
    folds: tuple[str, ...] = ()
    beside: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        return f"{self.number:02d}-{self.name}"


SCREENS: Final = (
    Screen(
        *(1, "cluster-overview", ""),
        says=(
            r"Role.*Version.*In\b.*Out\b.*Disk used.*Sent today.*Received today.*Sent yesterday.*Received yesterday",
            r"quarry\s+✓ alone\s+\d+\.\d+\.\d+\s+[\d.]+/s\s+[\d.]+/s\s+\d+\.\d %",
            r"at least \d+",
        ),
        folds=("Members and totals", "This broker", "The last hour in charts"),
    ),
    Screen(
        *(2, "topic-list", "topics"),
        says=(
            r"Filter by name.*Order",
            r"Type.*Queues.*Messages.*Size, about.*In\b.*Out\b",
            rf"orders\s+normal\s+2\s+{ORDERS + 1}\s+[\d.]+ KiB\s+[\d.]+/s\s+[\d.]+/s",
        ),
    ),
    Screen(
        *(3, "topic-detail", "topics/orders?tab=queues"),
        says=(r"First offset.*Next offset.*Messages.*First stored.*Last stored", r"0\s+31\s+31\s+\d+ \w+ \d*.*ago"),
    ),
    Screen(
        *(4, "groups-and-lag-beside-each-topic", "topics?contains=orders"),
        says=(r"audit: \d+ ready, oldest waits \d+ (s|min)", r"billing: \d+ ready, .*▲ nobody there"),
    ),
    Screen(
        *(5, "group-detail", "groups/audit?tab=queues"),
        says=(
            r"Next offset to read.*Max offset.*Left.*Delay",
            r"orders\s+0\s+\d+\s+31\s+\d+\s.*▲ lag [\d.,]+ s",
        ),
        beside=("groups/audit?tab=clients", r"simple consumer\s+audit\s+orders\s+PYTHON \d+\.\d+"),
    ),
    Screen(
        *(6, "message-browser", "messages?topic=orders&expression=paid&limit=20"),
        says=(r"the newest first.*from a time.*from an offset.*by id.*by key", r"order-58.*order-56", r'"paid": true'),
    ),
    Screen(*(7, "live-tail", "tail?topic=settled"), says=(r"✓ live", r"0 left out")),
    Screen(
        *(8, "offset-reset", "groups/billing?tab=reset"),
        says=(r"Reset offsets", r"to a time: the first message stored then or later", r"Dry run"),
    ),
    Screen(
        *(9, "dead-letters", "dead-letters/billing"),
        says=(
            r"Waiting for their next attempt",
            rf"Never sent again\s+{DEAD}\b",
            "Send all that were never sent again",
        ),
    ),
    Screen(*(10, "test-message", "topics/settled?tab=send"), says=(r"Send a test message", r"Message group")),
    Screen(
        *(11, "message-trace", "trace?topic=orders&key=order-7"),
        says=(r"orders, queue 1, offset 3\s+✓ is there", r"audit\s+[○●] \w+", r"billing\s+[○✓] \w+"),
    ),
    Screen(
        *(12, "users-and-rules", "users"),
        says=(r"acme\s+normal\s+✓ enabled\s+number 1 ••••••••", r"✓ allow\s+topic:orders\s+sub, get", "Test access"),
    ),
    Screen(
        *(13, "storage", "storage"),
        says=(
            r"Retention\s+3 d",
            r"Next file to expire",
            r"00000000000000000000\s+0\s+[\d.]+ KiB",
            r"queues\s+default\s+\d+",
            r"Time spans by queue",
        ),
    ),
    Screen(
        *(14, "migration", "migration"),
        says=(
            r"file\s+✓ done.*double write\s+● now.*backfilling\s+○ to come",
            r"Lag of the second store\s+[\d.]+ (B|KiB)",
            r"Go on to backfilling.*Roll back to file",
        ),
    ),
    Screen(
        *(15, "lite-topics", "lite?topic=sessions"),
        says=(
            r"Lite topics\s+5\s.*Limit\s+1\.00 M.*Kept after the last message for\s+1 d",
            rf"Backlog of devices.*device-1\s+{WAITING}",
            r"Lite topics with messages\s+Subscriptions\s+\S+\s+\d+\s+2",
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Street:
    """A browser, the shop's console, and that of a broker on its way from files to RocksDB."""

    browser: Browser
    shop: Shop
    url: str
    moving_url: str
    endpoint: str

    def url_of(self, screen: Screen) -> str:
        return self.moving_url if screen.name == "migration" else self.url


def broker_in(folder: Path, settings: Mapping[str, object]) -> tuple[Broker, str]:
    """A broker that is not started, and the address of its console."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environment = environment_of({**settings, "network.console": address})
    return Broker(folder / "store", logs=folder / "logs", environment=environment), f"http://{address}"


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Street]:
    folder = tmp_path_factory.mktemp("street")
    broker, url = broker_in(folder / "shop", {**SETTINGS, "security.key": new_key().decode()})
    moving, moving_url = broker_in(folder / "moving", SETTINGS)
    clients = Clients(languages.LANGUAGES["python"](), broker.endpoint, folder / "home")
    try:
        shop = Shop(broker.start())
        shop.open(folder / "home")
        broker.administer("user", "create", "acme")
        broker.administer("acl", "allow", "acme", "topic:orders", "get", "sub")
        shop.visit(clients)
        moving.start(settings={"consume_queue.mode": "file"})
        moving.restart()
        moving.administer("migration", "advance", "--wait")
        with Client(moving.endpoint) as client:
            client.send("orders", "order-0", 100)
        with chromium() as browser:
            yield Street(browser, shop, url, moving_url, broker.endpoint)
        shop.close()
        clients.close()
        moving.stop()
        broker.stop()
    finally:
        clients.kill()
        moving.close()
        broker.close()


@pytest.fixture
def console(street: Street, tmp_path: Path) -> Iterator[Console]:
    """Of the shop. Nothing that a test does may make the browser complain."""
    with window(street.browser, street.url, tmp_path) as opened:
        yield opened
        assert opened.mistakes == []


def numbered(screens: tuple[Screen, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("screen", [pytest.param(each, id=each.title) for each in screens])


def test_there_are_fifteen() -> None:
    assert [screen.number for screen in SCREENS] == list(range(1, 16))


@numbered(SCREENS)
def test_screen(street: Street, screen: Screen, tmp_path: Path) -> None:
    """Pictures are in the test's folder."""
    looks: tuple[tuple[int, Scheme], ...] = ((WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark"))
    for width, scheme in looks:
        with window(street.browser, street.url_of(screen), tmp_path, width=width, scheme=scheme) as console:
            console.go(screen.path)
            for title in screen.folds:
                console.unfold(title)
            for pattern in screen.says if width == WIDE else ():
                expect(console.page.locator("main")).to_have_text(re.compile(pattern, re.DOTALL), use_inner_text=True)
            console.picture(f"{screen.title}-{scheme}")
            console.assert_well_made()
            console.assert_text_stands_out()
            if scheme == "light":
                console.assert_keyboard_reaches_all()
            if screen.beside and width == WIDE:
                path, pattern = screen.beside
                console.go(path)
                expect(console.page.locator("main")).to_have_text(re.compile(pattern, re.DOTALL), use_inner_text=True)
            assert console.mistakes == []


@numbered(SCREENS)
def test_screen_without_colours(street: Street, screen: Screen, tmp_path: Path) -> None:
    """As systems paint it that put their own few colours in place of a page's: words and signs tell what they told."""
    with window(street.browser, street.url_of(screen), tmp_path) as console:
        console.go(screen.path)
        console.stand_still()
        told = console.page.locator("main .badge, main .notice").all_inner_texts()
        console.page.emulate_media(forced_colors="active")
        console.picture(f"{screen.title}-forced")
        assert console.page.locator("main .badge, main .notice").all_inner_texts() == told
        assert [text for text in told if not re.match(r"[✓▲✖●○] .*\w{2}", text)] == []
        console.assert_well_made()
        assert console.mistakes == []


# -- the screens that do something, done


def test_screen_06_a_message_is_found_by_id_key_offset_and_time(console: Console, street: Street) -> None:
    """And read as JSON, as text and as bytes."""
    sent = street.shop.send("settled", '{"found": [1, 2]}', Sent(key="needle", message_group="account-9"))
    for query in (f"how=id&id={sent}", "how=key&key=needle", "how=newest&has=found&limit=20"):
        console.go(f"messages?topic=settled&{query}")
        console.says('{"found": [1, 2]}')
    console.page.get_by_role("link", name=re.compile(r"^\d.\d+$")).first.click()
    expect(console.page.get_by_role("complementary", name=re.compile("^Message "))).to_contain_text(sent)
    expect(console.page.locator(".tree")).to_contain_text('"found"')
    console.press("Text")
    expect(console.page.locator("pre.body")).to_have_text('{"found": [1, 2]}')
    console.press("Hex")
    expect(console.page.locator("pre.hex")).to_contain_text("7b 22 66 6f")


def test_screen_10_a_test_message_comes_back_and_says_after_how_long(console: Console) -> None:
    console.go("topics/settled?tab=send")
    console.fill("Body", "there and back")
    console.fill("Message group", "account-9")
    console.press("Send")
    console.says(re.compile(r"✓ Sent and stored in [\d.]+ (µs|ms|s)"))
    console.says(re.compile(r"✓ Read again [\d.]+ (ms|s) after the send"))
    console.says("the same as was sent")
    expect(console.page.locator("main .preview", has_text="there and back")).to_be_visible()
    console.assert_well_made()


def test_screen_05_a_client_says_where_its_threads_are(console: Console, street: Street) -> None:
    with telling_client(street.endpoint, "main: waits for a lock"):
        console.go("clients?group=audit")
        console.page.get_by_role("button", name="details of telling").click()
        dialog = console.page.locator("dialog[open]")
        expect(dialog).to_contain_text("Subscriptions")
        dialog.get_by_role("button", name="Show threads").click()
        expect(dialog.locator("pre.body")).to_have_text("main: waits for a lock")
        dialog.get_by_role("button", name="Close").click()


@contextmanager
def telling_client(endpoint: str, trace: str) -> Iterator[None]:
    """A consumer of audit called `telling` that says where its threads are; the official one of Python says nothing."""
    said: Queue[service.TelemetryCommand | None] = Queue()
    said.put(service.TelemetryCommand(settings=consumer_settings("audit", "orders")))
    metadata = (("x-mq-client-id", "telling"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.0.8"))
    with grpc.insecure_channel(endpoint) as channel:
        stub = MessagingServiceStub(channel)
        words = stub.Telemetry(iter(said.get, None), metadata=metadata)
        next(words)  # its settings are taken

        def answer() -> None:
            asked = next(words).print_thread_stack_trace_command
            stack = service.ThreadStackTrace(nonce=asked.nonce, thread_stack_trace=trace)
            said.put(service.TelemetryCommand(status=definition.Status(code=definition.OK), thread_stack_trace=stack))

        answering = Thread(target=answer)
        answering.start()
        yield
        answering.join()
        said.put(None)
        assert list(words) == []


def test_screen_08_lite_topics_are_reset_by_a_job_that_is_followed_to_its_end(console: Console) -> None:
    """A call of its own would look at too many queues: the dry run is a job as well."""
    console.go("groups/devices?tab=reset")
    section = console.page.locator("section", has=console.page.get_by_role("heading", name="Reset offsets"))
    section.get_by_label("Topic").fill("sessions")
    section.get_by_label("Where to").select_option("latest")
    section.get_by_role("button", name="Dry run").click()
    expect(section).to_contain_text("Would be done:")
    section.get_by_role("button", name="Reset as a job now").click()
    expect(section).to_contain_text("✓ the job is done")
    console.mistakes[:] = [one for one in console.mistakes if "AdminService/ResetOffset" not in one]

    console.go("lite?topic=sessions")
    console.says("The group has no lag.")
    console.go("jobs")
    rows = console.page.locator("main tbody tr", has_text="group devices, topic sessions")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("✓ done")


def test_screen_14_a_verification_is_begun_and_ends_with_a_verdict(console: Console) -> None:
    console.go("jobs")
    console.press("Verify the store")
    console.confirm("Begin")
    section = console.page.locator("section", has=console.page.get_by_role("heading", name="Verifications"))
    expect(section.locator("tbody tr").first).to_contain_text("✓ agree")
    section.locator("summary").click()
    expect(section.get_by_role("table", name="Checks").locator("tbody tr").first).to_be_visible()
    expect(console.page.locator("section", has_text="Verify the store").last).to_contain_text("✓ agree")


def test_screen_15_a_lite_topic_is_deleted(console: Console) -> None:
    console.go("lite?topic=sessions")
    row = console.page.locator("tbody tr", has=console.page.get_by_role("button", name="Delete"))
    expect(row).to_have_count(5)
    row.filter(has_text="device-4").get_by_role("button", name="Delete").click()
    console.confirm("Delete", typed="device-4")
    expect(row).to_have_count(4)
    console.says(re.compile(r"^4$"))


def test_timers_and_transactions_are_told_with_when_they_are_due(console: Console) -> None:
    console.go("pending")
    timers = console.page.locator("section", has=console.page.get_by_role("heading", name="Timers, the next one first"))
    expect(timers.locator("tbody tr")).to_have_count(5)
    expect(timers.locator("tbody tr").first).to_contain_text(re.compile(r"in \d+ (min|s).*reminders", re.DOTALL))
    waiting = console.page.locator(
        "section", has=console.page.get_by_role("heading", name="Transactions, the oldest first")
    )
    expect(waiting.locator("tbody tr")).to_have_count(2)
    expect(waiting.locator("tbody tr").first).to_contain_text("ledger")
