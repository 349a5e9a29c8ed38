"""Offset ids and client ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import Host, PhysicalOffset
from quarry_mq.store.record import client_message_id, offset_message_id, parse_offset_message_id
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
