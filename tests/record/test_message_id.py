"""Offset ids and client ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import MessageIdGenerator, client_message_id, offset_message_id, parse_offset_message_id
from quarry_mq.store.record.message_id import CLIENT_ID_EPOCH_S
from tests.record.records import hosts, positive64

LOCALHOST = Host(bytes([127, 0, 0, 1]), 10_911)


def test_offset_id_as_rocketmq_writes_it() -> None:
    assert offset_message_id(LOCALHOST, PhysicalOffset(0)) == "7F00000100002A9F0000000000000000"
    assert offset_message_id(LOCALHOST, PhysicalOffset(0x2365B4)) == "7F00000100002A9F00000000002365B4"


@given(hosts, positive64)
def test_offset_id_round_trip(host: Host, at: int) -> None:
    text = offset_message_id(host, PhysicalOffset(at))
    assert len(text) == 24 + 2 * len(host.address)
    assert parse_offset_message_id(text) == (host, at)
    assert parse_offset_message_id(text.lower()) == (host, at)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100002A9F000000000000000",
        "7F00000100002A9F000000000000000G",
        "7F000001 0002A9F 000000000000000",
        "7F00000100012A9F0000000000000000",
        "7F00000100002A9FF000000000000000",
        "\u0667F00000100002A9F0000000000000000",
    ],
    ids=["empty", "short", "no hex", "spaces", "port too high", "negative offset", "foreign digit"],
)
def test_no_offset_id(text: str) -> None:
    with pytest.raises(Invalid, match="message id"):
        parse_offset_message_id(text)


@given(st.text())
def test_any_text_is_an_offset_id_or_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_offset_message_id(text)


def test_client_id_is_opaque() -> None:
    assert client_message_id({"UNIQ_KEY": "anything at all"}) == "anything at all"
    assert client_message_id({"UNIQ_KEY": ""}) is None
    assert client_message_id({}) is None


def test_generated_client_ids() -> None:
    clock = ManualClock((CLIENT_ID_EPOCH_S + 0x0A0B0C0D) * 1000 + 999)
    ids = MessageIdGenerator(mac_address=bytes.fromhex("56f7e0c2a1b3"), process_id=0x12345, clock=clock)
    assert ids.next_id() == "0156F7E0C2A1B323450A0B0C0D00000000"
    clock.advance(1)
    assert ids.next_id() == "0156F7E0C2A1B323450A0B0C0E00000001"


def test_clock_before_the_epoch_still_gives_ids() -> None:
    ids = MessageIdGenerator(mac_address=bytes(6), process_id=1, clock=ManualClock(0))
    made = [ids.next_id() for _ in range(100)]
    assert len(set(made)) == 100
    assert {len(each) for each in made} == {34}


def test_mac_address_has_six_bytes() -> None:
    with pytest.raises(ValueError, match="6 bytes, not 5"):
        MessageIdGenerator(mac_address=bytes(5), process_id=1, clock=ManualClock())
