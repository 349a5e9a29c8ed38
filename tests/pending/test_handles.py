"""Names of transactions and of delayed messages: nobody makes one up, and older ones are good for older messages."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from struct import pack

import pytest
from isal.isal_zlib import crc32

from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.server.errors import InvalidRecallHandle, InvalidTransactionId
from quarry_mq.server.pending.delays import RecallHandle
from quarry_mq.server.pending.transactions import decode_transaction_id, encode_transaction_id
from quarry_mq.store.message import PhysicalOffset
from tests.handles import HANDLE_KEY

OTHER_STORE = HandleKey(bytes(32), PhysicalOffset(0))
TRANSACTION = encode_transaction_id(42, "orders", HANDLE_KEY)
RECALL = RecallHandle(1_700_000_030_000, PhysicalOffset(4096), "01AB").encode("orders", HANDLE_KEY)


def test_they_come_back_as_they_were_given_out() -> None:
    assert decode_transaction_id(TRANSACTION, "orders", HANDLE_KEY) == (42, True)
    assert RecallHandle.decode(RECALL, "orders", HANDLE_KEY) == (1_700_000_030_000, 4096, "01AB", True)


def test_they_are_good_for_their_topic_and_store_alone() -> None:
    for topic, key in (("payments", HANDLE_KEY), ("order", HANDLE_KEY), ("orders", OTHER_STORE)):
        with pytest.raises(InvalidTransactionId):
            decode_transaction_id(TRANSACTION, topic, key)
        with pytest.raises(InvalidRecallHandle):
            RecallHandle.decode(RECALL, topic, key)


@pytest.mark.parametrize("digit", range(32))
def test_every_other_digit_of_a_transaction_id_is_noticed(digit: int) -> None:
    for other in set("0123456789ABCDEF") - {TRANSACTION[digit]}:
        with pytest.raises(InvalidTransactionId):
            decode_transaction_id(TRANSACTION[:digit] + other + TRANSACTION[digit + 1 :], "orders", HANDLE_KEY)


@pytest.mark.parametrize("bit", range(29 * 8))
def test_every_flipped_bit_of_a_recall_handle_is_noticed(bit: int) -> None:
    raw = bytearray(urlsafe_b64decode(RECALL))
    assert len(raw) == 29
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidRecallHandle):
        RecallHandle.decode(urlsafe_b64encode(raw).decode(), "orders", HANDLE_KEY)


def unproven_transaction(queue_offset: int, topic: str) -> str:
    """As anybody can make it."""
    digits = f"{queue_offset:016X}"
    return f"{digits}{crc32(f'{digits}{topic}'.encode()):08X}"


def unproven_recall(due_ms: int, at: int, message_id: bytes, topic: str) -> str:
    fields = pack(">Bqq", 1, due_ms, at)
    check = crc32(message_id + b"\0" + topic.encode(), crc32(fields))
    return urlsafe_b64encode(fields + pack(">I", check) + message_id).decode()


def test_those_of_older_versions_say_that_they_prove_nothing() -> None:
    assert decode_transaction_id(unproven_transaction(42, "orders"), "orders", HANDLE_KEY) == (42, False)
    text = unproven_recall(1, 2, b"01AB", "orders")
    assert RecallHandle.decode(text, "orders", HANDLE_KEY) == (1, 2, "01AB", False)
    with pytest.raises(InvalidTransactionId):
        decode_transaction_id(unproven_transaction(42, "orders"), "payments", HANDLE_KEY)
    with pytest.raises(InvalidRecallHandle):
        RecallHandle.decode(text, "payments", HANDLE_KEY)


def test_absurd_ones_are_invalid_and_nothing_else() -> None:
    with pytest.raises(InvalidTransactionId):
        decode_transaction_id(unproven_transaction(2**64 - 1, "orders"), "orders", HANDLE_KEY)
    for due_ms, at, message_id in ((-1, 2, b"01"), (1, -2, b"01"), (1, 2, b"")):
        with pytest.raises(InvalidRecallHandle):
            RecallHandle.decode(unproven_recall(due_ms, at, message_id, "orders"), "orders", HANDLE_KEY)
    assert not RecallHandle.decode(unproven_recall(1, 2, b"\xff", "orders"), "orders", HANDLE_KEY).is_proven
    for text in ("", "A", "====", "AQ==", "Ag==", "\xfc"):
        with pytest.raises(InvalidRecallHandle):
            RecallHandle.decode(text, "orders", HANDLE_KEY)
