"""The tags code of consume queue entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quarry_mq.protocol.names import SCHEDULE_TOPIC
from quarry_mq.store.record import java_hash, tags_code
from quarry_mq.store.record.properties import DELAY_LEVELS_MS

STORED_AT_MS = 1_795_219_820_440


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2_598_919),
        ("polygenelubricants", -2_147_483_648),
        ("支付", 25_903 * 31 + 20_184),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """Java hashes UTF-16 units: a character beyond the basic plane counts as two."""
    assert java_hash(text) == expected


@given(st.text(max_size=300))
def test_java_hash_by_its_definition(text: str) -> None:
    units = [unit for character in text for unit in utf16_units(character)]
    value = sum(unit * 31 ** (len(units) - 1 - index) for index, unit in enumerate(units)) % 2**32
    assert java_hash(text) == (value - 2**32 if value >= 2**31 else value)


def utf16_units(character: str) -> list[int]:
    point = ord(character)
    if point < 0x10000:
        return [point]
    return [0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF)]


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, 0), ({"TAGS": ""}, 0), ({"TAGS": "TagA"}, 2_598_919), ({"TAGS": "TagA", "DELAY": "3"}, 2_598_919)],
)
def test_ordinary_topics(properties: dict[str, str], expected: int) -> None:
    """Delivered copies keep their delay level: outside the schedule topic it means nothing."""
    assert tags_code("orders", properties, STORED_AT_MS) == expected


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("1", 1_000), ("3", 10_000), ("5", 60_000), ("17", 3_600_000), ("18", 7_200_000), ("9" * 5_000, 7_200_000)],
)
def test_schedule_topic_holds_the_time_of_delivery(level: str, delay_ms: int) -> None:
    assert tags_code(SCHEDULE_TOPIC, {"DELAY": level, "TAGS": "x"}, STORED_AT_MS) == STORED_AT_MS + delay_ms


@pytest.mark.parametrize("level", ["0", "", "-1", "x", "³"])
def test_schedule_topic_without_a_level(level: str) -> None:
    assert tags_code(SCHEDULE_TOPIC, {"DELAY": level, "TAGS": "a"}, STORED_AT_MS) == 97


def test_delay_levels_are_rocketmqs() -> None:
    unit = {"s": 1_000, "m": 60_000, "h": 3_600_000}
    setting = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert tuple(int(each[:-1]) * unit[each[-1]] for each in setting.split()) == DELAY_LEVELS_MS
