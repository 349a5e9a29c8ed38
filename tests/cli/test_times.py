"""Times on the command line: dates, lengths of time, and milliseconds."""

from __future__ import annotations

import pytest
import typer

from quarry_mq.cli.terminal.times import option_ms, past_ms, span_ms

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


class Stopped:
    """A stopped clock stands still."""

    def wall_ms(self) -> int:
        return NOW_MS

    def monotonic_s(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("text", "ms"),
    [("90s", 90_000), ("15m", 900_000), ("2h", 2 * HOUR_MS), ("3d", 72 * HOUR_MS), ("1d12h", 36 * HOUR_MS), ("0s", 0)],
)
def test_a_length_of_time_counts_from_now(text: str, ms: int) -> None:
    assert span_ms(text) == ms
    assert past_ms(text, clock=Stopped()) == NOW_MS - ms
    assert option_ms(text, "--since", clock=Stopped()) == NOW_MS - ms
    assert option_ms(text, "--deliver-at", is_future=True, clock=Stopped()) == NOW_MS + ms


def test_a_date_and_a_number_are_themselves() -> None:
    assert option_ms("2026-11-21T14:30:00+01:00", "--since") == 1_795_267_800_000
    assert option_ms("1795267800000", "--until") == 1_795_267_800_000
    assert option_ms(None, "--until") is None
    assert past_ms("2026-11-21T14:30:00+01:00") == 1_795_267_800_000


def test_an_age_beyond_1970_is_1970() -> None:
    assert past_ms("999999999999d", clock=Stopped()) == 0


@pytest.mark.parametrize("text", ["yesterday", "2", "h", "2 h", "-2h", "2h3", "2w", "", "1.5h"])
def test_what_is_no_length_of_time(text: str) -> None:
    assert span_ms(text) is None
    assert past_ms(text) is None


@pytest.mark.parametrize("text", ["yesterday", "2w", "-2h", "999999999999d"])
def test_a_wrong_time_is_told_with_what_would_be_right(text: str) -> None:
    with pytest.raises(
        typer.BadParameter, match=r"neither a date like 2026-\S+, a time from now such as 2h, nor ms"
    ) as told:
        option_ms(text, "--deliver-at", is_future=True, clock=Stopped())
    assert told.value.param_hint == "--deliver-at"
