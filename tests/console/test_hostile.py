"""Requests of enemies, of pages of strangers, and of browsers that go without a word."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import active_count
from typing import Final, NamedTuple

import pytest

from quarry_mq.server.console import application, connections
from quarry_mq.server.console import calls as calling
from quarry_mq.server.console.application import REQUEST_SIZE_MAX
from quarry_mq.server.console.calls import STREAMS_PER_SESSION_MAX, Entry, Rules
from tests.certificates import make_tls
from tests.console.browser import JSON, Browser, raw
from tests.console.endless import TAIL, AdminOfTest, console_before, endless_admin

GET_BROKER: Final = "/api/call/AdminService/GetBroker"
PATIENCE_S: Final = 20.0
ENTRY: Final = Entry("the-key", "chief", "secret-of-chief-0001")


class Place(NamedTuple):
    admin: AdminOfTest
    address: str
    browser: Browser


@pytest.fixture
def place() -> Iterator[Place]:
    with endless_admin() as (admin, address), console_before(address) as browser:
        yield Place(admin, address, browser)


def open_stream(browser: Browser, open_ones: ExitStack) -> None:
    connection = browser.connect()
    open_ones.callback(connection.close)
    with browser.asking(connection, "POST", f"/api/stream/{TAIL}", b"{}", JSON) as answer:
        assert answer.readline()


# -- pages of strangers


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": ""},
        {},
    ],
)
def test_what_a_form_can_send_is_no_call(headers: dict[str, str], place: Place) -> None:
    """Forms and simple requests of another site go out without a question, with all cookies."""
    for method, path in (("POST", GET_BROKER), ("POST", "/api/session"), ("DELETE", "/api/session")):
        answer = place.browser.ask(method, path, b"{}", headers)
        assert (answer.status, answer.code) == (415, "INVALID_ARGUMENT"), method


def test_what_another_origin_sends_is_no_call(place: Place) -> None:
    own = place.browser.address
    host, _, port = own.rpartition(":")
    for origin in (f"http://{own}", f"https://{own}"):
        assert place.browser.post(GET_BROKER, {}, {"Origin": origin}).status == 200
    for origin in (
        "null",
        "http://evil.example",
        f"http://{host}:{int(port) - 1}",
        f"http://{host}",
        f"http://{own}.evil.example",
        f"http://evil@{own}",
        f"ftp://{own}",
        "http://[",
        "",
    ):
        answer = place.browser.post(GET_BROKER, {}, {"Origin": origin})
        assert (answer.status, answer.code) == (403, "PERMISSION_DENIED"), origin
    for site in ("cross-site", "same-site"):
        assert place.browser.post(GET_BROKER, {}, {"Sec-Fetch-Site": site}).status == 403
    asked = place.browser.ask("OPTIONS", GET_BROKER, headers={"Origin": "http://evil.example"})
    assert asked.status in {403, 405, 415}
    assert not any(name.startswith("Access-Control") for name in asked.headers)


def test_a_name_that_is_led_here_is_not_ours(place: Place) -> None:
    port = place.browser.address.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "192.0.2.7", "LOCALHOST"):
        assert place.browser.get("/api/session", Host=host).status == 200, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "a b",
        "@",
    ):
        for path in ("/", "/api/session"):
            answer = place.browser.get(path, Host=host)
            assert (answer.status, answer.code) == (403, "PERMISSION_DENIED"), host
        assert place.browser.post(GET_BROKER, {}, {"Host": host}).status == 403
    assert raw(place.browser.address, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.0 400 ")


def test_names_that_were_set_are_ours(place: Place) -> None:
    with console_before(place.address, Rules(names=frozenset({"mq.example"}))) as browser:
        assert browser.get("/", Host="mq.example:8083").status == 200
        assert browser.get("/", Host="MQ.example").status == 200
        assert browser.get("/", Host="other.example").status == 403


def test_where_users_log_in_any_name_will_do(place: Place) -> None:
    """A stranger's name has no cookie, so there is nothing to be had under it."""
    with console_before(place.address, needs_login=True) as browser:
        assert browser.get("/", Host="mq.example").status == 200
        assert browser.post(GET_BROKER, {}, {"Host": "mq.example"}).status == 401


# -- files


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/x/../../application.py",
        "/static/x/..%2f..%2fapplication.py",
        "/static/x//etc/passwd",
        "/static/..%2fapplication.py",
        "/static/%2e%2e/application.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\application.py",
        "/static/index.html%00.js",
        "/static/",
        "/static",
        "/../../etc/passwd",
        "//etc/passwd",
    ],
)
def test_no_path_leads_out(path: str, place: Place) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    answer = raw(place.browser.address, request.encode())
    assert answer.split(b"\r\n")[0].split()[1] in {b"404", b"400", b"403"}, answer
    assert b"import" not in answer
    assert b"root:" not in answer


# -- requests that are none


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"A: b\r\n" * 5_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"b" * 20_000 + b"\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /api/session HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ],
    ids=range(9),
)
def test_nonsense_is_refused_and_the_next_is_served(data: bytes, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.5)
    assert place.browser.get("/").status == 200
    answer = raw(place.browser.address, data)
    assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:200]
    assert b"Traceback" not in answer
    assert place.browser.get("/").status == 200


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b'{"name": "\\ud800"}', b"\x00", b"null"],
    ids=range(8),
)
def test_requests_that_are_no_json_are_refused(body: bytes, place: Place) -> None:
    with console_before(place.address, needs_login=True) as asking:
        for browser, path in ((place.browser, "/api/call/AdminService/DeleteTopic"), (asking, "/api/session")):
            answer = browser.ask("POST", path, body, JSON)
            assert (answer.status, answer.code) == (400, "INVALID_ARGUMENT"), path


def test_a_request_has_a_size(place: Place) -> None:
    within = json.dumps({"name": "x" * (REQUEST_SIZE_MAX - 20)}).encode()
    place.admin.hold.set()
    assert place.browser.ask("POST", "/api/call/AdminService/GetTopic", within, JSON).status == 200
    beyond = json.dumps({"name": "x" * REQUEST_SIZE_MAX}).encode()
    answer = place.browser.ask("POST", "/api/call/AdminService/GetTopic", beyond, JSON)
    assert (answer.status, answer.code) == (413, "OUT_OF_RANGE")


def test_a_request_that_unpacks_itself_has_the_same_size(place: Place) -> None:
    bomb = gzip.compress(bytes(64 * REQUEST_SIZE_MAX))
    assert len(bomb) < REQUEST_SIZE_MAX
    answer = place.browser.ask("POST", GET_BROKER, bomb, {**JSON, "Content-Encoding": "gzip"})
    assert (answer.status, answer.code) == (413, "OUT_OF_RANGE")


# -- connections


def test_who_sends_slowly_is_not_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.3)
    monkeypatch.setattr(connections, "SWEEP_S", 0.05)
    monkeypatch.setattr(application, "READ_S", 0.3)
    head = b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    assert place.browser.get("/").status == 200
    began_s = time.monotonic()
    assert raw(place.browser.address, b"") == b"", "says nothing"
    assert raw(place.browser.address, b"GET / HT") == b"", "never ends its headers"
    answer = raw(place.browser.address, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200"), "is served, and then says nothing"
    with console_before(place.address, needs_login=True) as browser:
        late = raw(browser.address, head + b"Content-Length: 9\r\n\r\n{")
    assert late.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - began_s < PATIENCE_S


def test_who_does_not_end_a_handshake_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.3)
    tls = make_tls(tmp_path)
    with console_before(place.address, tls=tls.live()) as browser:
        assert raw(browser.address, b"") == b""
        assert raw(browser.address, b"\x16\x03\x01\x02\x00") == b""
        assert not raw(browser.address, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP")
        trusting = Browser(browser.address, ssl.create_default_context(cadata=tls.authority.decode()))
        assert trusting.get("/").status == 200


def test_connections_are_counted_and_the_idle_give_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 4)
    host, _, port = place.browser.address.rpartition(":")
    assert place.browser.get("/").status == 200
    with ExitStack() as open_ones:
        idle = []
        for _ in range(12):
            idle.append(open_ones.enter_context(socket.create_connection((host, int(port)), timeout=PATIENCE_S)))
            time.sleep(0.02)
        assert place.browser.get("/").status == 200
        assert idle[0].recv(1) == b"", "the oldest have been ended"
        for _ in range(4):
            open_stream(place.browser, open_ones)
        with pytest.raises(OSError, match=r"(?i)closed|reset"):
            place.browser.get("/")
    _until(lambda: _is_served(place.browser))


def test_who_does_not_read_is_not_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "WRITE_S", 0.3)
    host, _, port = place.browser.address.rpartition(":")
    body = b'{"topic":"fast"}'
    head = f"POST /api/stream/{TAIL} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert place.admin.ended.acquire(timeout=PATIENCE_S), "the call has ended at the broker"


# -- calls of which nobody wants to know any more


def test_a_browser_that_leaves_ends_its_stream_at_the_broker(place: Place) -> None:
    connection = place.browser.connect()
    with place.browser.asking(connection, "POST", f"/api/stream/{TAIL}", b"{}", JSON) as answer:
        assert json.loads(answer.readline())["leftOut"] == "1"
        assert not place.admin.ended.acquire(timeout=0.2)
        answer.close()
        connection.close()
    assert place.admin.ended.acquire(timeout=PATIENCE_S)


def test_a_browser_that_leaves_ends_its_call_at_the_broker(place: Place) -> None:
    connection = place.browser.connect()
    connection.request("POST", "/api/call/AdminService/GetTopic", b"{}", JSON)
    assert place.admin.started.acquire(timeout=PATIENCE_S)
    connection.close()
    assert place.admin.ended.acquire(timeout=PATIENCE_S)


def test_a_stream_that_does_not_end_is_not_collected(place: Place) -> None:
    answer = place.browser.call(TAIL, topic="fast")
    assert (answer.status, answer.code) == (413, "OUT_OF_RANGE")
    assert place.admin.ended.acquire(timeout=PATIENCE_S)


def test_logging_out_ends_streams(place: Place) -> None:
    with console_before(place.address, Rules(is_always_own=True, entry=ENTRY)) as browser:
        assert browser.get("/enter?key=the-key").status == 303
        connection = browser.connect()
        with browser.asking(connection, "POST", f"/api/stream/{TAIL}", b"{}", JSON) as answer:
            assert answer.readline()
            assert browser.log_out().status == 204
            assert json.loads(answer.readline())["error"]["code"] == "CANCELLED"
        connection.close()


def test_the_link_lets_in_who_has_it_and_nobody_else(place: Place) -> None:
    with console_before(place.address, Rules(is_always_own=True, entry=ENTRY)) as browser:
        assert browser.get("/api/session").fields["needsLogin"] is True
        for query in ("", "?key=", "?key=the-ke", "?key=%ff", "?key=the-keyy"):
            assert browser.get(f"/enter{query}").status == 403
        assert not browser.cookies
        assert browser.post(GET_BROKER, {}).status == 401
        entered = browser.get("/enter?key=the-key")
        assert (entered.status, entered.headers["Location"]) == (303, "/")
        assert browser.get("/api/session").fields["user"] == "chief"
        assert browser.post(GET_BROKER, {}).fields["name"] == "quarry"
        assert browser.get("/enter?key=the-key", Host="evil.example").status == 403
    with console_before(place.address) as browser:
        assert browser.get("/enter?key=").status == 404


def test_streams_and_calls_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "STREAMS_MAX", 3)
    monkeypatch.setattr(calling, "CALLS_MAX", 2)
    with console_before(place.address) as browser, ExitStack() as open_ones:
        for _ in range(3):
            open_stream(browser, open_ones)
        refused = browser.post(f"/api/stream/{TAIL}", {})
        assert (refused.status, refused.code) == (429, "RESOURCE_EXHAUSTED")
        with ThreadPoolExecutor(2) as others:
            waiting = [others.submit(browser.call, "AdminService/GetTopic") for _ in range(2)]
            for _ in waiting:
                assert place.admin.started.acquire(timeout=PATIENCE_S)
            refused = browser.call("AdminService/GetTopic")
            assert (refused.status, refused.code) == (503, "UNAVAILABLE")
            place.admin.hold.set()
            assert [each.result().status for each in waiting] == [200, 200]
        assert browser.post(GET_BROKER, {}).status == 200


def test_one_session_has_so_many_streams(place: Place) -> None:
    with console_before(place.address, Rules(entry=ENTRY)) as browser, ExitStack() as open_ones:
        assert browser.get("/enter?key=the-key").status == 303
        for _ in range(STREAMS_PER_SESSION_MAX):
            open_stream(browser, open_ones)
        assert browser.post(f"/api/stream/{TAIL}", {}).status == 429


def test_a_console_that_stops_ends_what_is_open_and_leaves_no_thread(place: Place) -> None:
    before = active_count()
    with ExitStack() as open_ones:
        with console_before(place.address) as browser:
            open_stream(browser, open_ones)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < PATIENCE_S
    assert place.admin.ended.acquire(timeout=PATIENCE_S)
    _until(lambda: active_count() <= before + 1)  # the stream had a thread of the admin port


def test_a_broker_that_is_not_there_is_told_of() -> None:
    with console_before("127.0.0.1:1") as browser:
        assert browser.get("/").status == 200
        answer = browser.post(GET_BROKER, {})
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")


def _is_served(browser: Browser) -> bool:
    try:
        return browser.get("/").status == 200
    except OSError:
        return False


def _until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
