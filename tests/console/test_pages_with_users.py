"""The console of a broker that asks who calls: log in, sessions that end, what one may not see, users and rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import expect

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.model import Action, Resource, Rule, Secret, User, UserKind
from quarry_mq.store.security.sealer import Sealer, new_key
from quarry_mq.store.settings import Durability, StoreSettings
from tests.console.chromium import Console, chromium, needs_chromium, window
from tests.e2e.broker import Broker, environment_of

pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.timeout(300)]

OPERATOR: Final = "operator"
READER: Final = "reader"
SECRET: Final = "a-secret-of-the-tests"
SEGMENT_SIZE: Final = 16 * 1024 * 1024


def make_store(root: Path) -> str:
    """A store with a super user, and with one who may look at one topic; returns the key of its secrets."""
    key = new_key()
    settings = StoreSettings(root=root, durability=Durability.SYNC, segment_size=SEGMENT_SIZE)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None, sealer=Sealer([key]))
    try:
        secrets = (Secret(1, SECRET, 0),)
        store.users.create(User(name=OPERATOR, kind=UserKind.SUPER, secrets=secrets, next_secret_number=2))
        store.users.create(User(name=READER, secrets=secrets, next_secret_number=2))
        rule = Rule(resource=Resource.parse("topic:orders"), actions=frozenset({Action.GET}))
        store.policies.put_rule(READER, rule)
    finally:
        store.close()
    return key.decode()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("console")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    environment = environment_of(
        {
            "store.segment_size": SEGMENT_SIZE,
            "security.authentication": True,
            "security.authorization": True,
            "security.key": make_store(folder / "store"),
            "network.console": address,
        }
    )
    broker = Broker(folder / "store", logs=folder / "logs", environment=environment)
    try:
        broker.start()
        yield f"http://{address}"
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def console(url: str, tmp_path: Path) -> Iterator[Console]:
    """A browser complains of each answer that refuses, which is what these tests are about."""
    with chromium() as browser, window(browser, url, tmp_path) as opened:
        yield opened
        assert [one for one in opened.mistakes if "Failed to load resource" not in one] == []


def log_in(console: Console, user: str, secret: str = SECRET) -> None:
    console.fill("User", user)
    console.fill("Secret", secret)
    console.press("Log in")


def test_a_session_that_is_over_leads_to_the_login_and_back(console: Console) -> None:
    console.go("settings")
    expect(console.page.locator("h1")).to_have_text("Log in")
    expect(console.page.get_by_label("User")).to_be_focused()
    console.assert_well_made()
    log_in(console, OPERATOR, "another")
    expect(console.page.get_by_role("alert")).to_contain_text("✖")
    log_in(console, OPERATOR)
    expect(console.page.locator("h1")).to_have_text("Settings")
    console.says("expiry.retention_hours")

    console.context.clear_cookies()
    console.page.get_by_role("link", name="Storage").click()
    expect(console.page.locator("h1")).to_have_text("Log in")
    log_in(console, OPERATOR)
    expect(console.page.locator("h1")).to_have_text("Storage")

    console.press("Log out", within="header")
    expect(console.page.locator("h1")).to_have_text("Log in")
    expect(console.page.locator("nav")).to_be_hidden()


def test_what_a_user_may_not_see_is_said_and_the_rest_goes_on(console: Console) -> None:
    console.go("users")
    log_in(console, READER)
    console.settle()
    expect(console.page.locator("main")).to_contain_text("You lack:")
    expect(console.page.get_by_role("heading", name="Test access")).to_be_visible()

    console.go("storage")
    expect(console.page.locator("main")).to_contain_text("You lack:")
    console.assert_well_made()


def test_a_user_is_made_and_its_secret_shown_once(console: Console) -> None:
    console.go("users")
    log_in(console, OPERATOR)
    console.settle()
    console.press("Create user")
    console.fill("Name", "acme", within="dialog")
    console.press("Create", within="dialog")
    shown = console.page.locator("dialog .secret")
    expect(shown).to_be_visible()
    secret = shown.inner_text()
    console.press("I have kept it", within="dialog")
    expect(console.page.locator("tbody tr", has_text="acme")).to_contain_text("number 1 ••••••••")
    assert secret not in console.page.content()

    console.press("Set a rule")
    console.fill("User", "acme", within="dialog")
    console.fill("Resource", "topic:parcels", within="dialog")
    console.page.locator("dialog").get_by_label("pub", exact=True).check()
    console.press("Set", within="dialog")
    expect(console.page.locator("tbody tr", has_text="topic:parcels")).to_contain_text("allow")

    test = console.page.locator("section", has=console.page.get_by_role("heading", name="Test access"))
    for resource, verdict in (("topic:parcels", "allowed"), ("topic:orders", "denied")):
        test.get_by_label("User").fill("acme")
        test.get_by_label("Resource").fill(resource)
        test.get_by_role("button", name="Test access").click()
        expect(test).to_contain_text(verdict)

    row = console.page.locator("section", has_text="Secrets").locator("tbody tr", has_text="acme").first
    row.get_by_role("button", name="Delete").click()
    console.confirm("Delete", typed="acme")
    expect(console.page.locator("tbody tr", has_text="acme")).to_have_count(0)
