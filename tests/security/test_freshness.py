"""Dates that calls were signed with, by clients all over the world."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from quarry_mq.server.errors import Unauthenticated
from quarry_mq.server.security.authentication import Freshness

BERLIN, SHANGHAI, KOLKATA = (ZoneInfo(name) for name in ("Europe/Berlin", "Asia/Shanghai", "Asia/Kolkata"))
WINDOW_MS = 300_000
NOW = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)


def ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def is_fresh(date: str, now: datetime = NOW, *zones: ZoneInfo) -> bool:
    try:
        until_ms = Freshness(WINDOW_MS, zones or (ZoneInfo("UTC"),)).fresh_until_ms(date, ms(now))
    except Unauthenticated:
        return False
    assert until_ms is not None
    assert ms(now) <= until_ms <= ms(now) + 2 * WINDOW_MS
    return True


@pytest.mark.parametrize("seconds", [-300, -299, 0, 300])
def test_a_date_within_the_window_is_fresh(seconds: int) -> None:
    assert is_fresh((NOW + timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ"))


@pytest.mark.parametrize("seconds", [-301, 301, 3600, -86400])
def test_a_date_outside_of_it_is_not(seconds: int) -> None:
    assert not is_fresh((NOW + timedelta(seconds=seconds)).strftime("%Y%m%dT%H%M%SZ"))


def test_local_time_is_good_in_zones_that_the_settings_name_and_no_others() -> None:
    in_shanghai = NOW.astimezone(SHANGHAI).strftime("%Y%m%dT%H%M%SZ")
    in_kolkata = NOW.astimezone(KOLKATA).strftime("%Y%m%dT%H%M%SZ")
    assert not is_fresh(in_shanghai)
    assert is_fresh(in_shanghai, NOW, BERLIN, SHANGHAI)
    assert not is_fresh(in_kolkata, NOW, BERLIN, SHANGHAI)
    assert is_fresh("20260301T083000Z", NOW, BERLIN, SHANGHAI), "UTC is always one of them"


def test_the_brokers_own_zone_is_one_of_them_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    local = datetime.fromtimestamp(NOW.timestamp())  # as a client on the same machine does
    Freshness(WINDOW_MS).fresh_until_ms(local.strftime("%Y%m%dT%H%M%SZ"), ms(NOW))


@pytest.mark.parametrize("hour_utc", [0, 1])
def test_both_hours_of_an_autumn_night_are_good(hour_utc: int) -> None:
    """At 01:00 UTC on 25 October 2026 clocks in Berlin go back from 3:00 to 2:00: 02:30 comes twice."""
    now = datetime(2026, 10, 25, hour_utc, 30, tzinfo=UTC)
    assert now.astimezone(BERLIN).strftime("%H:%M") == "02:30"
    assert is_fresh("20261025T023000Z", now, BERLIN)


def test_an_hour_that_does_not_come_in_spring_is_no_error() -> None:
    assert is_fresh("20260329T023000Z", datetime(2026, 3, 29, 1, 30, tzinfo=UTC), BERLIN)


def test_an_offset_is_believed_and_no_zone_is_tried_with_it() -> None:
    assert is_fresh("2026-03-01T16:30:00.123456789+08:00")
    assert is_fresh("2026-03-01T08:30:00Z")
    assert not is_fresh("2026-03-01T16:30:00Z", NOW, SHANGHAI)
    assert not is_fresh("2026-03-01T08:30:00+08:00", NOW, SHANGHAI)


@pytest.mark.parametrize(
    "date", ["", "now", "20260231T000000Z", "20260301T083000", "00000101T000000Z", "99991231T235959Z", "2" * 100]
)
def test_a_text_that_is_no_date_is_refused(date: str) -> None:
    assert not is_fresh(date, NOW, BERLIN)


def test_a_refusal_says_how_far_off_the_date_is_and_what_helps() -> None:
    with pytest.raises(Unauthenticated, match=r"5400 s ahead of .* security\.date_window_s \(300 s\).*client_zones"):
        Freshness(WINDOW_MS, [KOLKATA]).fresh_until_ms("20260301T100000Z", ms(NOW))
    with pytest.raises(Unauthenticated, match="600 s behind the broker's clock"):
        Freshness(WINDOW_MS, [BERLIN]).fresh_until_ms("2026-03-01T08:20:00Z", ms(NOW))


def test_without_a_window_any_text_is_good_for_ever() -> None:
    assert Freshness(None).fresh_until_ms("whatever", 0) is None
    with pytest.raises(Unauthenticated):
        Freshness(None).fresh_until_ms("x" * 65, 0)  # it is remembered, so it must end somewhere


def test_without_zones_a_date_must_have_an_offset() -> None:
    with pytest.raises(Unauthenticated):
        Freshness(WINDOW_MS, ()).fresh_until_ms("20260301T083000Z", ms(NOW))
