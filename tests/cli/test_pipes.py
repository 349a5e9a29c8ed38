"""`quarry produce --from` and `quarry consume` in pipes, against a broker in a process of its own."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.cli.online.messages.message_lines import LineInvalid, lines_as_they_come, message_of_json
from quarry_mq.client.requests import OutgoingMessage
from tests.cli.online_runner import Quarry
from tests.e2e.broker import PROJECT, SMALL_SEGMENTS, Broker, until

NUMBERS = count()
GIVEN = OutgoingMessage(topic="orders", body=b"", tag="given", properties={"a": "1"})


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("pipes")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        yield Quarry(broker.start())
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def topic(quarry: Quarry) -> str:
    name = f"piped-{next(NUMBERS)}"
    quarry.run("topic", "create", name, "--queues", 2, "--type", "mixed")
    return name


def consumed(quarry: Quarry, topic: str, *more: object) -> list[dict[str, object]]:
    return quarry.rows("consume", topic, "--group", f"{topic}-readers", "--timeout", 0.2, *more)


def test_each_line_is_a_message(quarry: Quarry, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"one\n\ntwo\r\n\xff\xfe\nlast")
    sent = quarry.rows("produce", topic, "--file", tmp_path / "lines", "--tag", "t", "--key", "k")
    assert [each["line"] for each in sent] == [1, 3, 4, 5]
    found = consumed(quarry, topic)
    assert [each.get("body", each.get("bodyBase64")) for each in found] == ["one", "two\r", "//4=", "last"]
    assert all((each["tag"], each["keys"]) == ("t", ["k"]) for each in found)
    assert {each["messageId"] for each in found} == {each["messageId"] for each in sent}
    assert quarry.run("produce", topic, "--file", "-", stdin=b"a\nb") == "2 messages sent\n"


def test_what_consume_says_produce_takes_back(quarry: Quarry, topic: str) -> None:
    bodies = [bytes(range(256)), "grüße\n\u2028".encode(), b"\x00", b'{"body": "x"}']
    lines = [
        {"bodyBase64": base64.b64encode(body).decode(), "tag": "t", "keys": ["k1", "k2"], "properties": {"n": str(n)}}
        for n, body in enumerate(bodies)
    ]
    lines.append({"body": "in order", "messageGroup": "g"})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    quarry.run("produce", topic, "--file", "-", "--json-lines", stdin=text.encode())
    first = quarry.run("consume", topic, "--group", f"{topic}-readers", "--timeout", 0.2, "--json")
    assert first.count("\n") == len(lines)

    quarry.run("produce", topic, "--file", "-", "--json-lines", stdin=first.encode())
    second = consumed(quarry, topic)
    what = ("body", "bodyBase64", "tag", "keys", "properties", "messageGroup", "priority", "liteTopic")

    def told(rows: list[dict[str, object]]) -> list[str]:
        return sorted(json.dumps([row.get(name) for name in what]) for row in rows)

    assert told(second) == told([json.loads(line) for line in first.removesuffix("\n").split("\n")])


def test_priorities_go_round(quarry: Quarry, topic: str) -> None:
    quarry.run("topic", "create", f"{topic}-first", "--type", "priority")
    quarry.run("produce", f"{topic}-first", "--file", "-", "--json-lines", stdin=b'{"body": "urgent", "priority": 0}')
    (row,) = consumed(quarry, f"{topic}-first")
    assert (row["body"], row["priority"], row["messageGroup"]) == ("urgent", 0, None)


def test_a_line_that_is_no_good_is_told_and_the_others_are_sent(quarry: Quarry, topic: str) -> None:
    lines = [
        '{"body": "first"}',
        "no json",
        '{"body": "x", "boddy": "y"}',
        '{"body": "", "tag": "t"}',
        '{"body": "tagged", "tag": "a|b"}',
        '{"body": "group and time", "messageGroup": "g", "deliverAt": 1}',
        '{"body": "last"}',
    ]
    result = quarry.result("produce", topic, "--file", "-", "--json-lines", stdin="\n".join(lines).encode())
    assert (result.exit_code, result.stdout) == (1, "2 messages sent, 5 lines not\n")
    said = dict(line.split(": ", 1) for line in result.stderr.splitlines())
    assert list(said) == ["line 2", "line 3", "line 6", "line 4", "line 5"]
    assert said["line 3"].startswith("boddy: no such field; there are: body, bodyBase64")
    assert said["line 4"].startswith("MESSAGE_BODY_EMPTY")
    assert said["line 5"].startswith("ILLEGAL_MESSAGE_TAG")
    assert "messageGroup" in said["line 6"]
    assert {each["body"] for each in consumed(quarry, topic)} == {"first", "last"}


def test_a_refusal_that_is_not_about_the_line_ends_it(quarry: Quarry) -> None:
    result = quarry.result("produce", "bad topic", "--file", "-", stdin=b"a\nb\n")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0] == "0 messages sent"
    assert "ILLEGAL_TOPIC" in result.stderr


def test_types_by_options(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "grouped", "--message-group", "g")
    quarry.run("produce", topic, "late", "--deliver-at", "2020-01-01T00:00Z")
    found = {each["body"]: each["messageGroup"] for each in consumed(quarry, topic)}
    assert found == {"grouped": "g", "late": None}
    for words in (
        ("x", "--file", "-"),
        ("--file", "-", "--count", 2),
        ("--json-lines",),
        ("x", "--message-group", "g", "--deliver-at", "1"),
    ):
        assert (
            "not allowed together" in (said := quarry.run("produce", topic, *words, status=2)) or "needs --file" in said
        )
    assert "no-such-file" in quarry.run("produce", topic, "--file", "no-such-file", status=2)


def process(quarry: Quarry, *words: str) -> subprocess.Popen[bytes]:
    """Also of a shell's background job, which ignores it, Ctrl-C ends the command."""
    python = ["env", "--default-signal=INT", sys.executable]
    return subprocess.Popen(
        [*python, "-m", "quarry_mq.cli.main", *words, "--endpoint", quarry.broker.endpoint],
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_line_is_sent_before_the_next_one_comes(quarry: Quarry, topic: str) -> None:
    sending = process(quarry, "produce", topic, "--file", "-", "--json")
    assert sending.stdin is not None
    assert sending.stdout is not None
    with sending:
        for number in (1, 2):
            sending.stdin.write(b"hello\n")
            sending.stdin.flush()
            assert json.loads(sending.stdout.readline())["line"] == number
        sending.stdin.close()
        assert sending.wait(30) == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_ends_ends_it_quietly_and_gives_the_rest_back(
    quarry: Quarry, topic: str, unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    quarry.run("produce", topic, "x" * 200_000, "--count", 5)
    reading = process(quarry, "consume", topic, "--group", f"{topic}-readers", "--invisible", "3600")
    assert reading.stdout is not None
    assert reading.stderr is not None
    with reading:
        reading.stdout.read(10)
        reading.stdout.close()
        said = reading.stderr.read()
        assert (reading.wait(30), said) == (128 + signal.SIGPIPE, b"")
    assert len(consumed(quarry, topic, "--timeout", 10, "--limit", 5)) == 5


def test_an_interrupt_gives_back_what_is_not_shown(quarry: Quarry, topic: str) -> None:
    quarry.run("produce", topic, "x" * 200_000, "--count", 5)
    reading = process(quarry, "consume", topic, "--group", f"{topic}-readers", "--invisible", "3600")
    assert reading.stdout is not None
    assert reading.stderr is not None
    with reading:
        shown = os.read(reading.stdout.fileno(), 100)
        reading.send_signal(signal.SIGINT)
        reading.stdout.read()
        assert b"Traceback" not in reading.stderr.read()
        assert reading.wait(30) == 130
    assert shown
    left: set[object] = set()

    def all_are_back() -> bool:
        left.update(each["queueOffset"] for each in consumed(quarry, topic, "--no-ack", "--limit", 1))
        return bool(left)

    until(all_are_back, "what was not shown")


@given(st.lists(st.binary(max_size=30).filter(lambda text: b"\n" not in text)), st.integers(1, 7))
def test_lines_are_found_however_they_come(texts: list[bytes], size: int) -> None:
    whole = b"\n".join(texts)

    class Slow:
        position = 0

        def read1(self, _limit: int) -> bytes:
            self.position += size
            return whole[self.position - size : self.position]

    found = [line for lines in lines_as_they_come(Slow()) for line in lines]  # type: ignore[arg-type]
    expected = whole.split(b"\n")
    assert [line.text for line in found] == (expected if expected[-1] else expected[:-1])
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    assert not found or found[-1].position == len(whole)


@given(st.binary(min_size=1), st.lists(st.text()), st.dictionaries(st.text(), st.text()))
def test_every_body_comes_back_from_json(body: bytes, keys: list[str], properties: dict[str, str]) -> None:
    fields = {"bodyBase64": base64.b64encode(body).decode(), "keys": keys, "properties": properties, "tag": None}
    message = message_of_json(json.dumps(fields).encode(), GIVEN)
    assert (message.body, message.keys, message.tag) == (body, tuple(keys), "given")
    assert message.properties == {"a": "1", **properties}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[]", "not a JSON object"),
        ("{}", "body or bodyBase64"),
        ('{"body": "a", "bodyBase64": "YQ=="}', "not both"),
        ('{"body": 1}', "body: "),
        ('{"bodyBase64": "a"}', "bodyBase64: "),
        ('{"bodyBase64": "\\u00e9"}', "bodyBase64: "),
        ('{"body": "a", "bodyEncoding": "zip"}', "bodyEncoding: "),
        ('{"body": "a", "keys": "k"}', "keys: "),
        ('{"body": "a", "properties": {"a": 1}}', "properties: "),
        ('{"body": "a", "priority": true}', "priority: "),
        ('{"body": "a", "priority": -1}', "priority: "),
        ('{"body": "a", "deliverAt": "soon"}', "deliverAt: "),
        ('{"body": "a", "deliverAt": 1.5}', "deliverAt: "),
        ('{"body": "a", "tag": 1}', "tag: "),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: str, says: str) -> None:
    with pytest.raises(LineInvalid, match=says):
        message_of_json(line.encode(), GIVEN)
