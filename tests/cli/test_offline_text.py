"""Records as text: what the golden stores do not contain."""

from __future__ import annotations

import json

import pytest

from quarry_mq.cli.offline.record_text import exact_time_text, json_line, record_fields, record_lines
from quarry_mq.store.message import Host, PhysicalOffset, host_text
from quarry_mq.store.record import Blank
from tests.record.records import HOST_V6, message, record, whole


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        (Host(bytes([10, 0, 0, 255]), 80), "10.0.0.255:80"),
        (Host(bytes(15) + b"\x01", 8081), "[::1]:8081"),
        (Host(bytes.fromhex("fd00000000000000000000000000abcd"), 0), "[fd00::abcd]:0"),
    ],
)
def test_hosts(host: Host, expected: str) -> None:
    assert host_text(host) == expected


@pytest.mark.parametrize(
    ("timestamp_ms", "expected"),
    [
        (0, "1970-01-01 00:00:00.000Z"),
        (-1, "1969-12-31 23:59:59.999Z"),
        (1_795_219_820_440, "2026-11-21 00:10:20.440Z"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_times(timestamp_ms: int, expected: str) -> None:
    assert exact_time_text(timestamp_ms) == expected


def test_record_with_ipv6_hosts_version_2_and_odd_properties() -> None:
    topic = "%RETRY%" + "g" * 130
    stored = whole(record(message(topic, b"", {"line": "a\nb", "é": "支"}, HOST_V6, HOST_V6)))
    fields = json.loads(json_line(record_fields(stored)))
    assert fields["bornHost"] == "[a0a1:a2a3:a4a5:a6a7:a8a9:aaab:acad:aeaf]:8081"
    assert fields["msgId"] == HOST_V6.address.hex().upper() + "00001F91" + "0" * 16
    assert fields["magic"] == "daa320ab"
    assert fields["sysFlag"] == 0x132
    assert fields["properties"] == {"line": "a\nb", "é": "支"}
    first, second = record_lines(stored).splitlines()
    assert first.split()[4:] == [f"{topic}/3@17", "body", "0", "flags", "0x132", "redelivered", "2"]
    assert second.split() == [r"line='a\nb'", "é=支"]


def test_record_without_properties_takes_one_line() -> None:
    assert len(record_lines(whole(record(message(properties={})))).splitlines()) == 1


def test_blank() -> None:
    blank = Blank(PhysicalOffset(1_048_454), 122)
    assert json_line(record_fields(blank)) == '{"blank":1048454,"size":122}'
    assert record_lines(blank) == "        1048454       122  blank up to the end of the segment"
