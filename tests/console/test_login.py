"""Sessions at a broker that asks who calls: logging in, what a user may not do, secrets that change, audit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.admin_port.console import AdminCalls, plain_channel
from quarry_mq.server.console.calls import Caller
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.model import Action, Resource, Rule, Secret, User, UserKind
from quarry_mq.store.security.sealer import Sealer, new_key
from quarry_mq.store.settings import Durability, StoreSettings
from tests.console.browser import Browser, broker_with_console
from tests.e2e.accounts import SEGMENT_SIZE
from tests.e2e.broker import Broker

CHIEF, READER, OUTSIDER, LOCAL = "chief", "reader", "outsider", "local"
WRONG: Final = "not-the-secret-0001"
FAILURES_PER_MINUTE: Final = 5
ELSEWHERE: Final = "127.0.0.2"
GET_BROKER: Final = "AdminService/GetBroker"


def secret_of(user: str) -> str:
    return f"secret-of-{user}-0001"


def make_users(store: Path) -> Mapping[str, object]:
    """A super user, one who may look at the cluster, one who may nothing, one who may so from `ELSEWHERE` alone."""
    key = new_key()
    cluster = Rule(resource=Resource.parse("cluster:*"), actions=frozenset({Action.GET}))
    rules = {
        READER: cluster,
        LOCAL: Rule(resource=cluster.resource, actions=cluster.actions, sources=(ip_network(ELSEWHERE),)),
    }
    opened = open_store(
        StoreSettings(root=store, durability=Durability.SYNC, segment_size=SEGMENT_SIZE),
        disk=PosixDisk(),
        clock=SystemClock(),
        report=lambda _: None,
        sealer=Sealer([key]),
    )
    try:
        for name in (CHIEF, READER, OUTSIDER, LOCAL):
            kind = UserKind.SUPER if name == CHIEF else UserKind.NORMAL
            secrets = (Secret(1, secret_of(name), 0),)
            opened.users.create(User(name=name, kind=kind, secrets=secrets, next_secret_number=2))
        for name, rule in rules.items():
            opened.policies.put_rule(name, rule)
    finally:
        opened.close()
    return {
        "security.authentication": True,
        "security.authorization": True,
        "security.key": key.decode(),
        "security.failures_per_minute": FAILURES_PER_MINUTE,
    }


class Place(NamedTuple):
    broker: Broker
    console: str

    def browser(self, user: str | None = None, source: str = "127.0.0.1") -> Browser:
        """Logged in, unless there is no user."""
        browser = Browser(self.console, source=source)
        if user is not None:
            assert browser.log_in(user, secret_of(user)).status == 204
        return browser

    def lines(self, event: str, **keys: str) -> list[dict[str, Any]]:
        """Of the broker's log."""
        found = [json.loads(each) for each in self.broker.words(last=1_000_000).splitlines() if each.startswith("{")]
        return [each for each in found if each["event"] == event and keys.items() <= each.items()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("login")
    broker, console = broker_with_console(directory, make_users(directory / "store"))
    try:
        broker.start()
        yield Place(broker, console)
        broker.stop()
    finally:
        broker.close()


def test_without_a_session_there_is_the_page_and_nothing_else(place: Place) -> None:
    browser = place.browser()
    assert browser.get("/").status == 200
    session = browser.get("/api/session").fields
    assert session.pop("version")
    assert session == {"needsLogin": True, "user": None, "broker": None, "cluster": None}
    for path in (f"/api/call/{GET_BROKER}", f"/api/stream/{GET_BROKER}", "/api/call/Nothing/Nothing"):
        answer = browser.post(path, {})
        assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")


def test_a_user_logs_in_calls_and_logs_out(place: Place) -> None:
    browser = place.browser()
    answer = browser.log_in(CHIEF, secret_of(CHIEF))
    assert (answer.status, answer.body) == (204, b"")
    (cookie,) = answer.headers.get_all("Set-Cookie", [])
    attributes = {each.strip().lower() for each in cookie.split(";")[1:]}
    assert attributes == {"httponly", "path=/", "samesite=strict"}
    assert browser.cookies.keys() == {f"quarry_{place.console.rpartition(':')[2]}"}
    assert secret_of(CHIEF) not in cookie
    session = browser.get("/api/session").fields
    assert (session["user"], session["broker"], session["cluster"]) == (CHIEF, "quarry", "DefaultCluster")
    assert browser.call(GET_BROKER).fields["name"] == "quarry"
    kept = dict(browser.cookies)
    assert browser.log_out().status == 204
    assert browser.call(GET_BROKER).status == 401
    browser.cookies = kept
    assert browser.call(GET_BROKER).status == 401, "the cookie alone is worth nothing"


def test_each_login_is_another_session(place: Place) -> None:
    browser = place.browser(CHIEF)
    first = dict(browser.cookies)
    assert browser.log_in(CHIEF, secret_of(CHIEF)).status == 204
    assert browser.cookies != first
    browser.cookies = first
    assert browser.call(GET_BROKER).status == 401, "the session before has ended"


@pytest.mark.parametrize(
    "fields", [{}, [], "text", {"user": CHIEF}, {"user": CHIEF, "secret": 1}, {"user": None, "secret": "s"}]
)
def test_what_is_no_login_is_refused(fields: object, place: Place) -> None:
    answer = place.browser().post("/api/session", fields)
    assert (answer.status, answer.code) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("user", ["", f"{CHIEF}/x", f"{CHIEF},x", f"x, Credential={CHIEF}", "chief\n", "ch\u00ef"])
def test_no_name_stands_for_another_one(user: str, place: Place) -> None:
    """It goes into a header that is taken apart at such characters."""
    answer = place.browser().log_in(user, secret_of(CHIEF))
    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("secret", ["", "short", "\ud800-not-unicode-at-all", "x" * 300, f"{secret_of(CHIEF)}\n"])
def test_what_is_no_secret_is_a_wrong_one(secret: str, place: Place) -> None:
    answer = place.browser(source="127.0.0.9").log_in(CHIEF, secret)
    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")


def test_who_may_nothing_may_log_in_and_sees_that(place: Place) -> None:
    browser = place.browser(OUTSIDER)
    session = browser.get("/api/session").fields
    assert (session["user"], session["broker"], session["cluster"]) == (OUTSIDER, None, None)
    answer = browser.call(GET_BROKER)
    assert (answer.status, answer.code) == (403, "PERMISSION_DENIED")
    (line,) = browser.stream(GET_BROKER)
    assert line["error"]["code"] == "PERMISSION_DENIED"
    assert browser.get("/api/session").fields["user"] == OUTSIDER, "that ends no session"


def test_rules_with_sources_are_about_the_browser(place: Place) -> None:
    assert place.browser(LOCAL).call(GET_BROKER).status == 403
    assert place.browser(LOCAL, source=ELSEWHERE).call(GET_BROKER).status == 200


def test_changes_and_denials_are_written_down_with_user_and_address(place: Place) -> None:
    browser = place.browser(CHIEF, source="127.0.0.3")
    assert browser.call("AdminService/CreateTopic", name="made", type="TOPIC_TYPE_NORMAL").status == 200
    (line,) = place.lines("admin change", resource="topic:made")
    assert (line["user"], line["how"]) == (CHIEF, "signature")
    assert line["peer"].startswith("127.0.0.3:")
    assert place.browser(READER, source="127.0.0.4").call("AdminService/DeleteTopic", name="made").status == 403
    (line,) = place.lines("call denied", user=READER)
    assert (line["method"], line["peer"]) == ("AdminService/DeleteTopic", "127.0.0.4")
    (login,) = place.lines("console login", user=READER)
    assert login["peer"].startswith("127.0.0.4:")


def test_wrong_secrets_are_counted_by_browser_and_not_for_the_console(place: Place) -> None:
    guesser = place.browser(source="127.0.0.5")
    statuses = [guesser.log_in(OUTSIDER, WRONG).status for _ in range(FAILURES_PER_MINUTE + 1)]
    assert statuses == [*[401] * FAILURES_PER_MINUTE, 429]
    assert guesser.log_in(OUTSIDER, secret_of(OUTSIDER)).status == 204, "who knows the secret is never kept out"
    assert place.browser(source="127.0.0.6").log_in(OUTSIDER, secret_of(OUTSIDER)).status == 204
    assert {line["peer"] for line in place.lines("call denied", user=OUTSIDER, how="claimed")} == {"127.0.0.5"}


@pytest.mark.parametrize("how", ["deleted", "disabled", "another secret"])
def test_a_user_that_changes_is_logged_out(how: str, place: Place) -> None:
    name = f"changing-{how.replace(' ', '-')}"
    chief = place.browser(CHIEF)
    assert chief.call("SecurityService/CreateUser", name=name, secret=secret_of(name)).status == 200
    browser = place.browser(name)
    assert browser.call(GET_BROKER).status == 403
    match how:
        case "deleted":
            changed = chief.call("SecurityService/DeleteUser", name=name)
        case "disabled":
            changed = chief.call("SecurityService/UpdateUser", name=name, enabled=False)
        case _:
            assert chief.call("SecurityService/AddSecret", name=name).fields["generatedSecret"]
            changed = chief.call("SecurityService/RemoveSecret", name=name, number=1)
    assert changed.status == 200
    answer = browser.call(GET_BROKER)
    assert (answer.status, answer.code) == (401, "UNAUTHENTICATED")
    assert browser.get("/api/session").fields["user"] is None


def test_who_calls_the_admin_port_itself_cannot_say_where_from(place: Place) -> None:
    """Believed on the socket alone: here the rule is for another address than the caller's."""
    calls = AdminCalls(plain_channel(place.broker.admin), clock=SystemClock(), tells_browser=True)
    try:
        caller = Caller(LOCAL, secret_of(LOCAL), f"{ELSEWHERE}:1")
        calls.log_in(caller)
        assert calls.identity(caller) == (None, None)
    finally:
        calls.close()


def test_no_secret_is_ever_written_down(place: Place) -> None:
    place.browser(CHIEF).call(GET_BROKER)
    words = place.broker.words(last=10_000_000)
    assert "console login" in words
    for user in (CHIEF, READER, OUTSIDER, LOCAL):
        assert secret_of(user) not in words
    assert WRONG not in words
