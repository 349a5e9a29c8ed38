"""Signatures as each official client writes them, against figures that OpenSSL made."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.signature import (
    AUTHORIZATION,
    DATE,
    Claim,
    admin_signature,
    date_signature,
    is_same,
    parse_authorization,
    signed_admin_headers,
    signed_messaging_headers,
)
from tests.security.users import SECRET

BASIC = "20260301T083000Z"
BASIC_HEX = "9209b4ff684f9141b51eec7520eae44453414569"
RUST = "2026-03-01T08:30:00.123456789+08:00"
RUST_HEX = "7904886b5d7c3450e30c3c1e3e799b8fb6113767"

CLIENTS = {
    "java": (f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX.upper()}", BASIC),
    "python": (f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX}", BASIC),
    "go": (f"MQv2-HMAC-SHA1 Credential=orders//Rocketmq, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX}", BASIC),
    "node": (f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX.upper()}", BASIC),
    "rust": (f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={RUST_HEX}", RUST),
    "dotnet": (f"MQv2-HMAC-SHA1 Credential=orders, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX.upper()}", BASIC),
    "cpp": (
        f"MQv2-HMAC-SHA1 Credential=orders/cn-hangzhou/RocketMQ, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX}",
        BASIC,
    ),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_each_clients_signature_is_read_and_right(client: str) -> None:
    header, date = CLIENTS[client]
    claim = parse_authorization(header)
    assert claim is not None
    assert claim.user == "orders"
    assert is_same(claim.signature, date_signature(SECRET, date))
    assert not is_same(claim.signature, date_signature(SECRET + "x", date))
    assert not is_same(claim.signature, date_signature(SECRET, date.replace("2026", "2027")))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "MQv2-HMAC-SHA1",
        "Bearer abc",
        # the Python client without any credentials
        f"MQv2-HMAC-SHA1 Credential=, SignedHeaders=x-mq-date-time, Signature={BASIC_HEX}",
        "MQv2-HMAC-SHA1 Credential=//Rocketmq, SignedHeaders=x-mq-date-time, Signature=00",
        "MQv2-HMAC-SHA1 Credential=a, Signature=00" + "0" * 1024,
    ],
)
def test_what_names_nobody_is_no_claim(header: str | None) -> None:
    assert parse_authorization(header) is None


@pytest.mark.parametrize("signature", ["", "xyz", "0", "1234", "é"])
def test_a_signature_that_is_none_is_a_claim_that_fails(signature: str) -> None:
    claim = parse_authorization(f"MQv2-HMAC-SHA1 Signature={signature},Credential=orders")
    assert claim is not None
    assert not is_same(claim.signature, date_signature(SECRET, BASIC))


def test_what_our_clients_send_is_what_brokers_read() -> None:
    headers = dict(signed_messaging_headers("orders", SECRET, now_ms=1_772_353_800_000))
    assert headers[DATE] == BASIC
    assert parse_authorization(headers[AUTHORIZATION]) == Claim("orders", bytes.fromhex(BASIC_HEX))


def test_an_admin_signature_covers_method_date_and_nonce() -> None:
    headers = dict(signed_admin_headers("ops", SECRET, "/a/B", now_ms=1_772_353_800_000, nonce="n" * 16))
    claim = parse_authorization(headers[AUTHORIZATION])
    date, nonce = headers["x-quarry-date"], headers["x-quarry-nonce"]
    assert date == "2026-03-01T08:30:00+00:00"
    assert claim == Claim("ops", admin_signature(SECRET, "/a/B", date, nonce))
    for other in (("/a/C", date, nonce), ("/a/B", date + "x", nonce), ("/a/B", date, nonce + "x")):
        assert claim.signature != admin_signature(SECRET, *other)
