"""`quarry message show` and `query`, against a broker in a process of its own."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from quarry_mq.cli.online.messages import message_query
from quarry_mq.cli.online.messages.message_query import body_fields
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages import bodies as compressed_bodies
from quarry_mq.protocol.messages.bodies import body_text, uncompressed
from quarry_mq.protocol.messages.system_flag import COMPRESSED
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.metadata.lite import light_queue_name
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import StoreSettings
from tests.cli.online_runner import Quarry, broker_over
from tests.cli.said import complaint
from tests.e2e.broker import Broker
from tests.store.assembly import message

MANY = 7


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One with the messages that `fill` tells of."""
    with broker_over(tmp_path_factory.mktemp("message"), fill) as broker:
        yield broker


def fill(root: Path) -> None:
    """One message for each thing that is shown, and three that do not fit into one answer."""
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    for name, kind in (("orders", TopicType.NORMAL), ("many", TopicType.NORMAL), ("chats", TopicType.LITE)):
        store.topics.create(Topic(name, kind, 2, 2))
    compressed = message("orders", 0, gzip.compress(b"small " * 2_000), UNIQ_KEY="M3")
    for each in (
        message("orders", 1, b"hello\nworld", UNIQ_KEY="M1", KEYS="k1 k2", TAGS="new", colour="blue"),
        message("orders", 0, b"\x00\xff", UNIQ_KEY="M2"),
        compressed._replace(system_flag=COMPRESSED),
        message("orders", 0, b"no gzip", UNIQ_KEY="M4")._replace(system_flag=COMPRESSED),
        message("orders", 0, b"again", UNIQ_KEY="M4"),
        message("orders", 0, b"\x1b[2J", UNIQ_KEY="M5", colour="\x1b[2J"),
        message("chats", INNER_MULTI_DISPATCH=light_queue_name("chats", "a"), __LITE_TOPIC="a", UNIQ_KEY="L1"),
        message("chats", INNER_MULTI_DISPATCH=light_queue_name("chats", "b"), __LITE_TOPIC="b", UNIQ_KEY="L2"),
        *(message("large", 0, bytes(2_000_000), UNIQ_KEY=f"B{number}", KEYS="big") for number in range(3)),
        *(message("many", number % 2, UNIQ_KEY=f"N{number}", KEYS="all") for number in range(MANY)),
    ):
        store.messages.append([each])
    store.messages.dispatch(store.messages.flush())
    store.close()


def run(broker: Broker, *words: object) -> Result:
    return Quarry(broker, "message").result(*words)


def shown(broker: Broker, *words: object, status: int = 0) -> dict[str, Any]:
    result = run(broker, "show", *words, "--json")
    assert result.exit_code == status, result.output
    row: dict[str, Any] = json.loads(result.stdout)
    return row


def refusal(broker: Broker, *words: object) -> str:
    """The one line that a command with status 2 says."""
    result = run(broker, *words)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return complaint(result.stderr).strip()


def test_a_message_is_shown_by_its_id_its_offset_id_and_its_place(broker: Broker) -> None:
    row = shown(broker, "M1", "--topic", "orders")
    assert (row["messageId"], row["body"], row["queueId"], row["queueOffset"]) == ("M1", "hello\nworld", 1, 0)
    assert row["properties"]["colour"] == "blue"
    assert row["queues"] == [{"queueOf": "orders", "queue": 1, "offset": 0, "isThere": True, "groups": []}]
    assert shown(broker, row["offsetMsgId"]) == row
    assert shown(broker, "--topic", "orders", "--queue", 1, "--offset", 0) == row


def test_people_see_properties_body_and_groups(broker: Broker) -> None:
    Quarry(broker).run("consume", "orders", "--group", "billing", "--tag", "new", "--limit", 1)
    text = run(broker, "show", "M1", "--topic", "orders").stdout
    fields = dict(re.split("  +", line, maxsplit=1) for line in text.split("\n\n")[0].splitlines())
    assert (fields["message id"], fields["tag"], fields["keys"]) == ("M1", "new", "k1 k2")
    assert fields["body length"] == "11 B"
    assert "\nproperties\n" in text
    assert "\n  colour=blue\n" in text
    assert "\nbody\nhello\nworld\n" in text
    assert text.splitlines()[-1].split() == ["orders", "1", "0", "yes", "billing", "done", "not", "kept", "-", "-"]


def test_a_body_is_bounded_uncompressed_and_harmless(broker: Broker, tmp_path: Path) -> None:
    where = ("--topic", "orders")
    assert shown(broker, "M2", *where)["bodyBase64"] == base64.b64encode(b"\x00\xff").decode()
    assert "\nbody, base64\nAP8=\n" in run(broker, "show", "M2", *where).stdout
    assert shown(broker, "M3", *where)["body"] == "small " * 2_000
    bounded = run(broker, "show", "M3", *where).stdout
    assert "… of 12000 bytes the first 4096" in bounded
    assert len(bounded) < 8_000
    assert run(broker, "show", "M3", *where, "--output", "-").stdout_bytes == b"small " * 2_000
    written = run(broker, "show", "M3", *where, "--output", tmp_path / "body")
    assert (tmp_path / "body").read_bytes() == b"small " * 2_000
    assert "small" not in written.stdout
    assert written.stdout.startswith("message id   M3\n")
    assert "\x1b" not in run(broker, "show", "M5", *where).stdout
    assert str(tmp_path) in refusal(broker, "show", "M3", *where, "--output", tmp_path)


def test_what_cannot_be_uncompressed_is_a_finding(broker: Broker) -> None:
    place = ("--topic", "orders", "--queue", 0, "--offset", 2)
    assert shown(broker, *place, status=1)["body"] == "no gzip"
    assert "is shown as stored" in run(broker, "show", *place).stderr
    result = run(broker, "show", "M4", "--topic", "orders")
    assert result.exit_code == 0
    assert "2 messages have this id; this is the newest" in result.stderr
    assert "\nbody\nagain\n" in result.stdout


def test_what_is_not_there_is_one_line(broker: Broker) -> None:
    assert refusal(broker, "show", "M9", "--topic", "orders") == "id: topic orders has no message with this id"
    assert refusal(broker, "show", "M1").startswith("topic: must be given")
    assert refusal(broker, "show", "0" * 32).startswith("id: there is no message with this id")
    assert "has offsets 0 to 0, not 5" in refusal(broker, "show", "--topic", "orders", "--queue", 1, "--offset", 5)
    assert refusal(broker, "query", "--topic", "ghosts").endswith("topic: no topic ghosts")
    for words, option in (
        (("show",), "ID"),
        (("show", "--topic", "orders", "--queue", 1), "ID"),
        (("show", "M1", "--offset", 1), "--offset"),
        (("query", "--topic", "orders", "--since", "yesterday"), "--since"),
        (("query", "--topic", "orders", "--until", 10**15), "--until"),
    ):
        assert option in refusal(broker, *words)


def rows(broker: Broker, *words: object, status: int = 0) -> list[dict[str, Any]]:
    result = run(broker, "query", *words, "--json")
    assert result.exit_code == status, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_messages_are_listed_by_time_and_by_key_over_pages(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_query, "PAGE_ROWS", 2)
    found = rows(broker, "--topic", "many")
    ids = [f"N{number}" for number in range(MANY)]
    assert [each["messageId"] for each in found] == ids
    assert rows(broker, "--topic", "many", "--limit", 3) == found[:3]
    assert rows(broker, "--topic", "many", "--queue", 1) == found[1::2]
    assert rows(broker, "--topic", "many", "--key", "all") == found[::-1]
    assert rows(broker, "--topic", "many", "--key", "all", "--limit", 3) == found[:-4:-1]
    assert rows(broker, "--topic", "many", "--key", "all", "--queue", 1, "--limit", 2) == found[-2:0:-2][:2]
    assert rows(broker, "--topic", "many", "--key", "N2") == [found[2]]
    first_ms = found[0]["storeTimestamp"]
    assert rows(broker, "--topic", "many", "--since", first_ms) == found
    assert rows(broker, "--topic", "many", "--until", "2020-01-01T00:00Z", status=1) == []
    assert rows(broker, "--topic", "many", "--key", "nothing", status=1) == []
    assert [each["messageId"] for each in rows(broker, "--topic", "chats", "--lite-topic", "b")] == ["L2"]


def test_large_messages_of_a_key_are_put_together_from_several_answers(broker: Broker) -> None:
    where = ("--topic", "large", "--key", "big")
    listed = run(broker, "query", *where).stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["B2", "B1", "B0"]
    traced = run(broker, "trace", *where).stdout.splitlines()
    assert len(traced) == 4
    found = Quarry(broker).rows("query", *where, "--admin", broker.admin)
    assert [each["properties"]["UNIQ_KEY"] for each in found] == ["B2", "B1", "B0"]


def test_a_row_tells_what_a_consumer_would_get(broker: Broker) -> None:
    [row] = rows(broker, "--topic", "orders", "--key", "k1")
    assert (row["messageId"], row["queue"], row["offset"], row["tag"]) == ("M1", 1, 0, "new")
    assert (row["keys"], row["properties"], row["body"], row["size"]) == (
        ["k1", "k2"],
        {"colour": "blue"},
        "hello\nworld",
        11,
    )
    [heading, line] = run(broker, "query", "--topic", "orders", "--key", "k1").stdout.splitlines()
    assert heading.split() == ["MESSAGE", "ID", "STORED", "AT", "QUEUE", "OFFSET", "TAG", "KEYS", "SIZE"]
    words = line.split()
    assert (words[0], words[2:]) == ("M1", ["1", "0", "new", "k1,", "k2", "11", "B"])


def test_gzip_and_zlib_are_told_apart() -> None:
    assert uncompressed(gzip.compress(b"body")) == uncompressed(zlib.compress(b"body")) == b"body"


@pytest.mark.parametrize("body", [b"", b"body", zlib.compress(b"body")[:-1], gzip.compress(b"body", mtime=0) + b"more"])
def test_what_is_not_whole_is_not_uncompressed(body: bytes) -> None:
    assert uncompressed(body) is None


def test_a_body_that_grows_without_end_is_not_uncompressed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed_bodies, "PLAIN_SIZE_MAX", 1_000)
    assert uncompressed(zlib.compress(bytes(1_000))) == bytes(1_000)
    assert uncompressed(zlib.compress(bytes(1_001))) is None


def test_text_is_what_does_nothing_to_a_terminal() -> None:
    assert body_text("zwölf\n\tTöne\u3000音".encode()) == "zwölf\n\tTöne\u3000音"
    for body in (b"\xff", b"\x1b[2J", b"\x00", "\x9b2J".encode()):
        assert body_text(body) is None
    assert body_fields(b"a") == {"body": "a"}
    assert body_fields(b"\x00") == {"bodyBase64": "AA=="}
