"""Lines about denied calls and about changes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from structlog.testing import capture_logs

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.security.audit import KINDS_MAX, Audit, AuditFile, Subject

SEND = Subject("messaging", "SendMessage", "192.0.2.7:50123", "orders", "signature")


def test_denials_of_a_kind_are_written_once_a_minute_with_how_many_came_since() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for port in range(5):
            audit.denied(SEND._replace(peer=f"192.0.2.7:{port}"), "wrong", "no such secret")
        audit.denied(SEND._replace(user="billing"), "wrong", "no such secret")
        audit.denied(SEND, "another", "not this topic")
        clock.advance(61)
        audit.denied(SEND, "wrong", "again")
    assert [(each["event"], each["user"], each.get("suppressed")) for each in lines] == [
        ("call denied", "orders", None),
        ("call denied", "billing", None),
        ("call denied", "orders", None),
        ("call denied", "orders", 4),
    ]
    assert (lines[0]["peer"], lines[0]["reason"], lines[0]["method"]) == ("192.0.2.7", "no such secret", "SendMessage")


def test_what_was_suppressed_is_told_when_nothing_comes_any_more() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        audit.denied(SEND, "wrong", "first")
        audit.denied(SEND, "wrong", "second")
        audit.sweep()
        assert len(lines) == 1
        clock.advance(60)
        audit.sweep()
        audit.sweep()
    assert [(each["reason"], each.get("suppressed")) for each in lines] == [("first", None), ("second", 1)]


def test_who_calls_under_ever_new_names_gets_no_line_for_each() -> None:
    clock = ManualClock()
    audit = Audit(clock)
    with capture_logs() as lines:
        for number in range(KINDS_MAX + 100):
            audit.denied(SEND._replace(user=f"guess{number}" * 100), "wrong" * 100, "no" * 1000)
        assert len(lines) == KINDS_MAX
        assert all(len(each[key]) <= 256 for each in lines for key in ("user", "outcome", "reason"))
        clock.advance(61)
        audit.sweep()
    assert lines[-1] == {
        "event": "more kinds of denials than are told apart",
        "log_level": "warning",
        "suppressed": 100,
    }


def test_the_file_holds_an_object_a_line_and_is_opened_again_when_it_is_moved(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    audit = Audit(ManualClock(), AuditFile(path))
    audit.changed(SEND._replace(port="admin"), "topic:orders", "done")
    path.rename(moved)
    audit.denied(SEND, "wrong", "no\nsuch secret")
    audit.close()
    (first,), (second,) = ([json.loads(line) for line in each.read_text().splitlines()] for each in (moved, path))
    assert first == {
        "at": "2023-11-14T22:13:20.000+00:00",
        "event": "admin change",
        "port": "admin",
        "method": "SendMessage",
        "peer": "192.0.2.7:50123",
        "user": "orders",
        "how": "signature",
        "resource": "topic:orders",
        "outcome": "done",
    }
    assert (second["event"], second["reason"]) == ("call denied", "no\nsuch secret")


def test_the_line_that_the_manual_shows_is_one(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    at = int(datetime(2026, 3, 1, 8, 30, tzinfo=UTC).timestamp() * 1000) + 123
    audit = Audit(ManualClock(at), AuditFile(tmp_path / "audit.log"))
    subject = Subject("admin", "AdminService/DeleteTopic", "192.0.2.7:50123", "operator", "signature")
    audit.changed(subject, "topic:orders", "done")
    audit.close()
    assert f"\n```json\n{(tmp_path / 'audit.log').read_text()}```\n" in page


def test_a_file_that_cannot_be_written_is_said_once_and_ends_no_call(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    audit = Audit(ManualClock(), AuditFile(folder / "audit.log"))
    (folder / "audit.log").unlink()
    folder.rmdir()
    with capture_logs() as lines:
        for _ in range(3):
            audit.changed(SEND, "topic:orders", "done")
        folder.mkdir()
        audit.changed(SEND, "topic:payments", "done")
    audit.close()
    events = [each["event"] for each in lines]
    assert events.count("the audit file cannot be written") == 1
    assert "payments" in (folder / "audit.log").read_text()
