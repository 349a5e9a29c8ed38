"""The console of a broker that asks nobody who he is: files, session, calls, streams, errors, messages."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from quarry_mq.cli.online.connection.messaging import messaging_port
from quarry_mq.client.requests import OutgoingMessage
from quarry_mq.server.console.application import FOLDER, read_static_files
from tests.console.browser import JSON, Browser, broker_with_console
from tests.e2e.broker import Broker

TOPIC: Final = "orders"


class Place(NamedTuple):
    broker: Broker
    browser: Browser


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    broker, console = broker_with_console(
        tmp_path_factory.mktemp("console"), {"index.tiered": True, "network.console_hosts": '["MQ.example"]'}
    )
    try:
        broker.start()
        broker.administer("topic", "create", TOPIC, "--queues", "1")
        with messaging_port(broker.endpoint) as client:
            client.send(
                OutgoingMessage(topic=TOPIC, body=b"hello", tag="paid", keys=["k1", "k2"], properties={"a": "b"})
            )
        yield Place(broker, Browser(console))
        broker.stop()
    finally:
        broker.close()


def digest_in(page: bytes) -> str:
    """Return the part of the addresses of files that changes with their contents."""
    (digest,) = set(re.findall(r'"/static/(\w+)/', page.decode()))
    return str(digest)


def index_with(digest: str) -> bytes:
    return (FOLDER / "index.html").read_bytes().replace(b"/static/", f"/static/{digest}/".encode())


def test_the_page_and_its_files_are_there(place: Place) -> None:
    page = place.browser.get("/")
    assert page.status == 200
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    digest = digest_in(page.body)
    assert page.body == index_with(digest)
    for path in set(FOLDER.rglob("*")) - {FOLDER / "index.html"}:
        if path.is_file():
            answer = place.browser.get(f"/static/{digest}/{path.relative_to(FOLDER).as_posix()}")
            assert answer.body == path.read_bytes()
            assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"


def test_a_page_of_another_version_gets_files_and_asks_again(place: Place) -> None:
    for digest in ("0123456789abcdef", "x"):
        answer = place.browser.get(f"/static/{digest}/app.js")
        assert answer.body == (FOLDER / "app.js").read_bytes()
        assert answer.headers["Cache-Control"] == "no-cache"


def test_a_changed_file_changes_the_addresses_of_all(tmp_path: Path) -> None:
    folder = tmp_path / "static"
    shutil.copytree(FOLDER, folder)
    before = read_static_files(folder)
    (folder / "table.js").write_bytes((folder / "table.js").read_bytes() + b"// changed\n")
    after = read_static_files(folder)
    assert after.digest != before.digest
    assert digest_in(after.by_path["index.html"].plain) == after.digest


def test_modules_are_named_by_relative_paths() -> None:
    """An absolute path would leave the folder that has the digest in its name."""
    for path in FOLDER.rglob("*"):
        if path.suffix in {".js", ".css"}:
            assert "/static/" not in path.read_text(), path


def test_files_are_asked_for_again_and_not_sent_again(place: Place) -> None:
    first = place.browser.get("/", Accept_Encoding="gzip")
    assert first.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(first.body) == index_with(digest_in(gzip.decompress(first.body)))
    assert first.headers["Cache-Control"] == "no-cache"
    assert first.headers["Vary"] == "Accept-Encoding"
    again = place.browser.get("/", Accept_Encoding="gzip", If_None_Match=first.headers["ETag"])
    assert (again.status, again.body) == (304, b"")
    assert place.browser.get("/", Accept_Encoding="gzip", If_None_Match='"other"').status == 200
    assert place.browser.get("/").headers["ETag"] != first.headers["ETag"], "other bytes have another name"


@pytest.mark.parametrize("path", ["/", "/static/nothing", "/static/x/nothing", "/api/session", "/nothing"])
def test_every_answer_has_the_headers_that_protect(path: str, place: Place) -> None:
    headers = place.browser.get(path).headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Server"] == "quarry"
    assert "Access-Control-Allow-Origin" not in headers


def test_there_is_no_login_where_nobody_is_asked(place: Place) -> None:
    answer = place.browser.get("/api/session")
    assert answer.fields == {
        "needsLogin": False,
        "user": None,
        "broker": "quarry",
        "cluster": "DefaultCluster",
        "version": answer.fields["version"],
    }
    assert answer.headers["Cache-Control"] == "no-store"
    refused = place.browser.log_in("somebody", "some-secret-or-other")
    assert (refused.status, refused.code) == (412, "FAILED_PRECONDITION")


def test_names_of_the_settings_are_ours_and_no_other(place: Place) -> None:
    assert place.browser.get("/", Host="mq.example:8083").status == 200
    assert place.browser.get("/", Host="evil.example").status == 403


def test_a_call_is_answered_in_the_json_of_protobuf(place: Place) -> None:
    answer = place.browser.call("AdminService/GetTopic", name=TOPIC)
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("application/json")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.fields["name"] == TOPIC
    broker = place.browser.call("AdminService/GetBroker").fields
    assert isinstance(broker["startedAtMs"], str), "64 bits do not fit into a number of JavaScript"
    empty = place.browser.ask("POST", "/api/call/AdminService/GetBroker", b"", JSON)
    assert empty.fields["name"] == "quarry"


def test_a_call_is_made_on_members_by_name_or_on_all(place: Place) -> None:
    call = place.browser.call
    answers = call("AdminService/GetTopic?members=all", name=TOPIC).fields["answers"]
    name = answers[0]["member"]
    assert [(each["member"], each["isSelf"], each["code"]) for each in answers] == [
        (name, True, ""),
        (name, True, "OK"),
    ]
    assert answers[0]["answer"]["name"] == TOPIC
    assert call(f"AdminService/GetTopic?member={name}", name=TOPIC).fields["name"] == TOPIC
    browsed = call(f"BrowsingService/BrowseMessages?member={name}", topic=TOPIC).fields
    assert browsed["messages"][0]["message"]["message"]["body"]["text"] == "hello"
    failed = call("AdminService/GetTopic?members=all", name="nothing").fields["answers"]
    assert [(each["code"], "nothing" in each["problem"]) for each in failed] == [("NOT_FOUND", True)]
    refused = call(f"AdminService/GetTopic?member={name}", name="nothing")
    assert (refused.status, refused.code) == (404, "NOT_FOUND")
    assert call("AdminService/GetTopic?member=nobody", name=TOPIC).status == 404
    # the status of an answer of RocketMQ's service is told as the end of the call
    spans = call("Admin/QueryTimeSpan?members=all", group={"name": "nothing"}).fields["answers"]
    assert spans[0]["code"] == "CONSUMER_GROUP_NOT_FOUND"


def test_a_stream_comes_line_by_line_or_whole(place: Place) -> None:
    whole = place.browser.call("AdminService/ListTopics").fields
    assert [topic["name"] for page in whole["answers"] for topic in page["topics"]] == [TOPIC]
    assert place.browser.stream("AdminService/ListTopics") == whole["answers"]
    assert place.browser.stream("AdminService/GetTopic", name=TOPIC)[0]["name"] == TOPIC


@pytest.mark.parametrize(
    ("method", "fields", "status", "code"),
    [
        ("AdminService/GetTopic", {"name": "nowhere"}, 404, "NOT_FOUND"),
        ("AdminService/CreateTopic", {"name": TOPIC, "type": "TOPIC_TYPE_NORMAL"}, 409, "ALREADY_EXISTS"),
        ("AdminService/GetTopic", {"name": 1}, 400, "INVALID_ARGUMENT"),
        ("AdminService/GetTopic", {"unknown": 1}, 400, "INVALID_ARGUMENT"),
        ("AdminService/GetTopic", [], 400, "INVALID_ARGUMENT"),
        ("MembersService/ListMembers", {}, 412, "FAILED_PRECONDITION"),
        ("AdminService/Nothing", {}, 404, "NOT_FOUND"),
        ("Nothing/Nothing", {}, 404, "NOT_FOUND"),
        # in the answer itself, and not of gRPC
        ("Admin/DescribeTopicStatus", {"topic": {"name": "nowhere"}}, 404, "TOPIC_NOT_FOUND"),
        ("Admin/DescribeTopicStatus", {}, 400, "ILLEGAL_TOPIC"),
    ],
)
def test_errors_have_their_status(method: str, fields: object, status: int, code: str, place: Place) -> None:
    answer = place.browser.post(f"/api/call/{method}", fields)
    assert (answer.status, answer.code) == (status, code)


def test_the_error_of_a_stream_is_its_last_line(place: Place) -> None:
    (line,) = place.browser.stream("AdminService/GetTopic", name="nowhere")
    assert line["error"]["code"] == "NOT_FOUND"
    assert "nowhere" in line["error"]["message"]
    assert place.browser.post("/api/stream/Nothing/Nothing", {}).status == 404


def test_a_message_is_shown_decoded(place: Place) -> None:
    answer = place.browser.call("QueryService/GetMessage", topic=TOPIC, place={"queue": 0, "offset": 0}).fields
    trace: dict[str, Any] = answer["message"]
    assert "record" not in trace
    message = trace["message"]
    assert (message["topic"], message["queue"], message["offset"]) == (TOPIC, 0, 0)
    assert (message["tag"], message["keys"]) == ("paid", ["k1", "k2"])
    assert message["properties"]["a"] == "b"
    assert message["body"] == {"text": "hello", "base64": "aGVsbG8=", "isCut": False, "plainSize": 5}
    assert isinstance(message["storedAtMs"], int)
    found = place.browser.call("QueryService/QueryMessages", topic=TOPIC, key="k2").fields["messages"]
    assert [each["message"]["messageId"] for each in found] == [message["messageId"]]


def test_a_change_is_written_down_with_the_browser_s_address(place: Place) -> None:
    assert place.browser.call("AdminService/CreateTopic", name="made", type="TOPIC_TYPE_NORMAL").status == 200
    lines = [json.loads(line) for line in place.broker.words(last=100_000).splitlines() if line.startswith("{")]
    (line,) = [each for each in lines if each["event"] == "admin change" and each["resource"] == "topic:made"]
    assert line["method"] == "AdminService/CreateTopic"
    assert line["peer"].startswith("127.0.0.1:")


@pytest.mark.slow
def test_the_socket_lies_where_nobody_else_may_go_and_goes_with_the_broker(tmp_path: Path) -> None:
    broker, console = broker_with_console(tmp_path, {}, TMPDIR=str(tmp_path))
    try:
        broker.start()
        (folder,) = tmp_path.glob("quarry-console-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert [path.name for path in folder.iterdir()] == ["admin"]
        assert f"console     http://{console}/" in broker.words()
        broker.kill()
        assert folder.exists()
        broker.start()
        (another,) = tmp_path.glob("quarry-console-*")
        assert another != folder, "what was left behind is removed by the next one"
        broker.stop()
        assert not another.exists()
    finally:
        broker.close()


def test_a_tail_shows_what_comes(place: Place) -> None:
    """The first answers may hold nothing: they tell that it goes on."""
    body = json.dumps({"topic": TOPIC}).encode()
    with (
        closing(place.browser.connect()) as connection,
        place.browser.asking(connection, "POST", "/api/stream/BrowsingService/TailMessages", body, JSON) as answer,
        messaging_port(place.broker.endpoint) as client,
        ThreadPoolExecutor(1) as reading,
    ):
        seen = reading.submit(lambda: next(line for line in map(json.loads, answer) if line["messages"]))
        while not seen.done():
            client.send(OutgoingMessage(topic=TOPIC, body=b"tailed"))
            time.sleep(0.1)
        assert seen.result()["messages"][0]["message"]["message"]["body"]["text"] == "tailed"
        answer.close()
