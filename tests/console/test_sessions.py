"""Sessions end: idle ones, old ones, those that are too many."""

from __future__ import annotations

from quarry_mq.server.console.calls import Identity
from quarry_mq.server.console.sessions import ABSOLUTE_END_S, IDLE_END_S, SESSIONS_MAX, Sessions
from tests.conformance.broker import PushedClock

NOBODY = Identity(None, None)


def test_ids_are_long_and_never_the_same() -> None:
    sessions = Sessions(PushedClock())
    ids = {sessions.begin("a", "s", NOBODY) for _ in range(100)}
    assert len(ids) == 100
    assert min(map(len, ids)) >= 43, "256 bits in base64"
    assert sessions.find(None) is None
    assert sessions.find("") is None
    assert sessions.find("\udcff") is None


def test_a_session_that_is_idle_ends() -> None:
    clock = PushedClock()
    sessions = Sessions(clock)
    busy, idle = sessions.begin("busy", "s", NOBODY), sessions.begin("idle", "s", NOBODY)
    for _ in range(3):
        clock.push(IDLE_END_S / 2)
        assert sessions.find(busy) is not None
    assert sessions.find(idle) is None
    assert len(sessions) == 1


def test_a_page_that_refreshes_itself_keeps_no_session() -> None:
    clock = PushedClock()
    sessions = Sessions(clock)
    session_id = sessions.begin("away", "s", NOBODY)
    for pushed in range(1, 4):
        clock.push(IDLE_END_S / 4)
        assert sessions.find(session_id, idle_s=pushed * IDLE_END_S / 4) is not None
    clock.push(IDLE_END_S / 4)
    assert sessions.find(session_id, idle_s=IDLE_END_S) is None


def test_no_session_is_for_ever_and_its_end_is_told() -> None:
    clock = PushedClock()
    sessions = Sessions(clock)
    session_id = sessions.begin("a", "s", NOBODY)
    session = sessions.find(session_id)
    assert session is not None
    told: list[str] = []
    session.on_end.add(lambda: told.append("over"))
    pushed_s = 0.0
    while pushed_s + IDLE_END_S / 2 < ABSOLUTE_END_S:
        clock.push(IDLE_END_S / 2)
        pushed_s += IDLE_END_S / 2
        assert sessions.find(session_id) is session
    assert told == []
    clock.push(IDLE_END_S / 2)
    sessions.sweep()
    assert told == ["over"]
    assert session.secret is None
    assert sessions.find(session_id) is None


def test_beyond_the_limit_the_one_that_did_nothing_for_longest_goes() -> None:
    clock = PushedClock()
    sessions = Sessions(clock)
    ids = [sessions.begin(str(number), "s", NOBODY) for number in range(SESSIONS_MAX)]
    clock.push(1)
    assert sessions.find(ids[0]) is not None
    last = sessions.begin("last", "s", NOBODY)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find(ids[1]) is None
    assert sessions.find(ids[0]) is not None
    assert sessions.find(last) is not None


def test_a_session_shows_no_secret() -> None:
    sessions = Sessions(PushedClock())
    session = sessions.find(sessions.begin("a", "the-secret", NOBODY))
    assert "the-secret" not in repr(session)
