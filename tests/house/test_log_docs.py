"""`docs/log-events.md` lists every event that can be logged, with its level and keys, and nothing else."""

from __future__ import annotations

import ast
import re
from typing import Final

from tests.house.log_events import FAULT_KEYS, LogEvent, log_calls, log_events, logging_files
from tests.house.source import ROOT, imports, name, production_files, tree

PAGE: Final = ROOT / "docs" / "log-events.md"
ROW: Final = re.compile(r"^\| `([^`]+)` \| ([a-z]+) \| (.*) \| (.+) \|$", flags=re.MULTILINE)
MADE_ELSEWHERE: Final = {"timestamp", "level", "event", "repeated"}
"""Keys that the pipe itself writes."""


def documented() -> list[LogEvent]:
    rows: list[tuple[str, str, str, str]] = ROW.findall(PAGE.read_text())
    return [LogEvent(text, level, frozenset(re.findall(r"`(\w+)`", keys))) for text, level, keys, _ in rows]


def test_the_page_lists_every_event_and_no_other() -> None:
    listed = documented()
    assert len(listed) == len(set(listed))
    assert sorted(set(listed) - log_events()) == [], "on the page, not in the code"
    assert sorted(log_events() - set(listed)) == [], "in the code, not on the page"


def test_every_event_says_what_it_means() -> None:
    for text, _, _, meaning in ROW.findall(PAGE.read_text()):
        assert len(meaning.split()) > 1, text


def test_events_are_constant_texts() -> None:
    """Searches and counts of log lines go by the event, so each event is one text."""
    wrong = [call.where for path in logging_files() for call in log_calls(path) if call.text is None]
    assert not wrong, f"put what varies into a key: {wrong}"


def test_no_event_takes_a_key_of_the_pipe() -> None:
    assert {event.text for event in log_events() if event.keys & MADE_ELSEWHERE} == set()


def test_whoever_logs_has_a_logger_called_log() -> None:
    """The tests of this file find events by it."""
    users = {path for path in production_files() if any(each.module == "structlog" for each in imports(path))}
    configuring = {"cli/offline/opened_store.py", "server/observability/logs.py"}
    assert {name(path) for path in users - set(logging_files())} <= configuring


def test_the_keys_of_a_fault_are_those_that_are_reported() -> None:
    """`ErrorReporter.report` logs what it is given."""
    given = {
        keyword.arg
        for path in production_files()
        if name(path).startswith("server/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "report"
        if "error_reporter" in ast.unparse(node.func.value)
        for keyword in node.keywords
        if keyword.arg is not None
    }
    assert given
    assert given <= FAULT_KEYS
