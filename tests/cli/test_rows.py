"""Lists of commands say so if they are empty, and programs get no words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quarry_mq.cli.terminal.output import print_object, print_rows


def test_an_empty_list_says_so_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([], ("name", "queues"), as_json=False, kind="topics")
    assert capsys.readouterr().out == "no topics\n"
    print_rows([], ("name", "queues"), as_json=True, kind="topics")
    assert not capsys.readouterr().out


def test_a_list_has_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(iter([{"name": "orders", "queues": 4}]), ("name", "queues"), as_json=False, kind="topics")
    assert capsys.readouterr().out == "NAME    QUEUES\norders       4\n"


def test_columns_are_as_wide_as_their_values_and_numbers_stand_at_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"name": "orders-of-the-north", "messages": 10_400, "lagSeconds": 11_520.0, "isOnline": True},
        {"name": "bills", "messages": 7, "lagSeconds": None, "isOnline": False},
    ]
    print_rows(rows, ("name", "messages", "lagSeconds", "isOnline"), as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "NAME                 MESSAGES         LAG  ONLINE",
        "orders-of-the-north    10,400  3 h 12 min  yes",
        "bills                       7           -  no",
    ]


def test_rows_beyond_the_first_are_printed_as_they_come(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"name": "a"}
        yield {"name": "b"}
        assert capsys.readouterr().out == "NAME\na\nb\n"
        yield {"name": "a-name-that-is-longer"}

    print_rows(rows(), ("name",), as_json=False, buffered_max=1)
    assert capsys.readouterr().out == "a-name-that-is-longer\n"


def test_what_came_before_an_error_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[dict[str, object]]:
        yield {"name": "a"}
        raise LookupError

    with pytest.raises(LookupError):
        print_rows(rows(), ("name",), as_json=False)
    assert capsys.readouterr().out == "NAME\na\n"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("maxOffset", 1_234_567, "max offset  1234567"),
        ("messages", 1_234_567, "messages  1,234,567"),
        ("lateMs", 1500, "late  1.5 s"),
        ("ttlMinutes", 60, "ttl  1 h"),
        ("diskFree", 3 << 30, "disk free  3.0 GiB"),
        ("size", 664, "size  664 B"),
        ("diskUsedPercent", 62.5, "disk used  62.5 %"),
        ("sentPerSecond", 12.54, "sent/s  12.5"),
        ("backoff", {"delaysMs": [1000, 120_000]}, "backoff  delays=1 s, 2 min"),
        ("attributes", {"lite.topic.expiration": "60"}, "attributes  lite.topic.expiration=60"),
        ("readers", [], "readers  -"),
        ("deleteHours", [4, 16], "expiry at hours  4, 16"),
        ("dueInAMinute", 13, "due in a minute  13"),
    ],
)
def test_values_are_formatted_for_people(
    name: str, value: object, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_object({name: value}, as_json=False)
    assert capsys.readouterr().out.strip() == shown
