"""Messages with times that no calendar has: every command shows them, and ends well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from quarry_mq.cli.online.messages.consume import message_fields
from quarry_mq.cli.terminal.text import moment, time_text
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.names import SCHEDULE_TOPIC
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import TIME_MS_MAX
from quarry_mq.server.admin.storage import expires_at_ms
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.record.properties import tags_code
from quarry_mq.store.retention import ExpirySettings
from quarry_mq.store.settings import StoreSettings
from tests.cli.online_runner import Quarry, broker_over
from tests.e2e.broker import Broker, quarry
from tests.store.assembly import message

MICROSECONDS = 1_700_000_000_000_000
BORN = (MICROSECONDS, MICROSECONDS * 1000, 2**63 - 1, TIME_MS_MAX + 1, -1, -(2**63))


def fill(root: Path) -> None:
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    store.topics.create(Topic("orders", TopicType.NORMAL, 1, 1))
    for number, born_ms in enumerate(BORN):
        sent = message("orders", 0, b"body", UNIQ_KEY=f"M{number}", KEYS="k")
        store.messages.append([sent._replace(born_timestamp_ms=born_ms)])
    store.messages.dispatch(store.messages.flush())
    store.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_over(tmp_path_factory.mktemp("times"), fill) as broker:
        yield broker


def born(output: str) -> list[int]:
    return [json.loads(line)["bornTimestamp"] for line in output.splitlines()]


def test_commands_that_read_records_show_what_is_there(broker: Broker) -> None:
    run = Quarry(broker)
    assert born(run.run("browse", "orders", "--from", "earliest", "--json")) == list(BORN)
    assert born(run.run("message", "query", "--topic", "orders", "--key", "k", "--json")) == list(reversed(BORN))
    for number, born_ms in enumerate(BORN):
        shown = run.run("message", "show", f"M{number}", "--topic", "orders")
        fields = dict(re.split("  +", line, maxsplit=1) for line in shown.splitlines()[:9])
        assert fields["born at"].endswith("Z" if born_ms == -1 else str(born_ms))


def test_commands_that_get_messages_as_clients_do_show_the_end_of_the_calendar(broker: Broker) -> None:
    run = Quarry(broker)
    clamped = [min(max(each, 0), TIME_MS_MAX) for each in BORN]
    everything = ("--limit", len(BORN), "--json")
    assert born(run.run("consume", "orders", "--group", "billing", *everything)) == clamped
    assert born(run.run("tail", "orders", "--from", "earliest", *everything)) == clamped
    assert born(run.run("message", "query", "--topic", "orders", "--json")) == clamped
    assert run.run("message", "query", "--topic", "orders").count("M") >= len(BORN)


def test_the_offline_commands_show_what_is_there(tmp_path: Path) -> None:
    fill(tmp_path)
    decoded = quarry("decode", str(tmp_path), "--json")
    assert not decoded.stderr
    assert [json.loads(line)["bornTimestamp"] for line in decoded.stdout.splitlines()][: len(BORN)] == list(BORN)


def test_times_are_texts_whatever_they_are() -> None:
    assert time_text(0) == "1970-01-01T00:00:00Z"
    assert time_text(-1) == "1969-12-31T23:59:59Z"
    assert time_text(TIME_MS_MAX) == "9999-12-31T23:59:59Z"
    for beyond in (TIME_MS_MAX + 1, MICROSECONDS * 1000, 2**63 - 1, -(2**63)):
        assert time_text(beyond) == str(beyond)
        assert moment(beyond) is None
    assert moment(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


def test_a_time_of_another_server_is_shown_as_it_came() -> None:
    sent = definition.Message()
    sent.system_properties.born_timestamp.seconds = 2**62
    assert message_fields(sent)["bornTimestamp"] == 2**62 * 1000


@pytest.mark.parametrize("newest_ms", [TIME_MS_MAX, 2**62, 2**63 - 1])
def test_a_file_with_such_a_record_expires_at_some_time(newest_ms: int) -> None:
    assert expires_at_ms(ExpirySettings(retention_ms=1, delete_when=frozenset({4})), newest_ms, 0) >= newest_ms


@pytest.mark.parametrize("stored_ms", [2**63 - 1, -(2**63), 0])
def test_a_delay_never_leaves_what_an_entry_holds(stored_ms: int) -> None:
    assert -(2**63) <= tags_code(SCHEDULE_TOPIC, {"DELAY": "18"}, stored_ms) < 2**63
