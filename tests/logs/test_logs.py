"""Log lines as an operator or a collector of logs reads them from a pipe."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import pytest
import structlog

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.observability import logs
from quarry_mq.server.observability.logs import VALUE_LENGTH_MAX, Repeats, configure_logs
from tests.users.tables import SECRET

FORGED = 'x\n2026-11-22T00:00:00Z [error    ] store poisoned\r\x1b[2J\u2028 "}\n{"event": "store poisoned"}'
"""What a client may send to make the log say what nobody logged."""


class Pipe:
    """The log of this process, caught."""

    def __init__(self, clock: ManualClock, output: io.StringIO, repeats: Repeats) -> None:
        self.clock = clock
        self.repeats = repeats
        self._output = output
        self.log = structlog.get_logger("tests")

    @property
    def text(self) -> str:
        return self._output.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@contextmanager
def pipe(
    log_format: Literal["json", "console"] = "json", level: str = "info", repeats_per_minute: int = 0
) -> Iterator[Pipe]:
    clock, output = ManualClock(), io.StringIO()
    root = logging.getLogger()
    before = (structlog.get_config(), root.handlers[:], root.level, threading.excepthook, sys.stderr)
    sys.stderr = output
    logs.log = structlog.get_logger()  # the one before remembers the pipe of an earlier test
    try:
        yield Pipe(clock, output, configure_logs(log_format, level, repeats_per_minute, clock=clock))
    finally:
        config, root.handlers[:], _, threading.excepthook, sys.stderr = before
        root.setLevel(before[2])
        logging.captureWarnings(capture=False)
        structlog.configure(**config)


# -- lines


def test_an_event_is_one_line_of_json_with_time_level_and_event_first() -> None:
    with pipe() as its:
        its.log.info("topic created", topic="orders", queues=8, seen={"a": 1})
        [line] = its.lines
        assert list(json.loads(line)) == ["timestamp", "level", "event", "topic", "queues", "seen"]
        assert json.loads(line)["seen"] == {"a": 1}


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_a_client_sent_cannot_forge_a_line(log_format: Literal["json", "console"]) -> None:
    with pipe(log_format) as its:
        its.log.warning("message passed over", topic=FORGED, listed=[FORGED], named={"group": FORGED})
        assert len(its.lines) == 1
        assert all(character.isprintable() for character in its.text.removesuffix("\n"))


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_what_a_client_sent_cannot_forge_a_line_by_an_error_either(log_format: Literal["json", "console"]) -> None:
    with pipe(log_format) as its:
        try:
            raise ValueError(FORGED)
        except ValueError:
            its.log.exception("call failed")
        first, *others = its.lines
        assert "call failed" in first
        assert all(line.startswith("  ") for line in others if not line.startswith("Traceback (most recent")), others
        assert "\x1b" not in its.text
        assert "\u2028" not in its.text


def test_long_values_are_cut() -> None:
    with pipe() as its:
        its.log.info("call", request_id="x" * 1_000_000, many=list(range(100_000)))
        [event] = its.events
        assert len(event["request_id"]) == VALUE_LENGTH_MAX
        assert len(event["many"]) == VALUE_LENGTH_MAX


def test_a_long_traceback_keeps_its_end() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("what it was about")
        exec(f"deep({levels - 1})", {"deep": deep})  # a plain recursion is cut short by Python

    with pipe() as its:
        try:
            deep(300)
        except ValueError:
            its.log.exception("call failed")
        [event] = its.events
        assert len(event["exception"]) < 20_000
        assert event["exception"].endswith("ValueError: what it was about")


def test_a_log_that_nobody_reads_any_more_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_text: str) -> int:
        raise BrokenPipeError

    with pipe(repeats_per_minute=1) as its:
        with monkeypatch.context() as broken:
            broken.setattr(sys.stderr, "write", fail)
            its.log.info("stopping", by="SIGTERM")
            its.log.info("stopping", by="SIGINT")
            its.repeats.tell_due(all_of_them=True)
            logging.getLogger("library").warning("something")
        its.log.info("stopped")
        assert [event["event"] for event in its.events] == ["stopped"]


# -- repeats


def test_the_first_of_an_event_is_written_at_once_and_what_is_too_much_once_a_minute() -> None:
    with pipe(repeats_per_minute=3) as its:
        for number in range(100):
            its.log.error("damaged data", error=f"place {number}")
        assert [event["error"] for event in its.events] == ["place 0", "place 1", "place 2"]
        its.clock.advance(59)
        its.repeats.tell_due()
        assert len(its.events) == 3
        its.clock.advance(1)
        its.repeats.tell_due()
        assert its.events[3]["error"] == "place 99"
        assert its.events[3]["repeated"] == 96
        its.log.error("damaged data", error="place 100")
        assert its.events[4]["error"] == "place 100"
        assert "repeated" not in its.events[4]


def test_what_was_suppressed_is_told_when_the_event_comes_again() -> None:
    with pipe(repeats_per_minute=1) as its:
        for number in range(4):
            its.log.info("connection ended", peer=number)
        its.clock.advance(60)
        its.log.info("connection ended", peer=4)
        assert [(event["peer"], event.get("repeated")) for event in its.events] == [(0, None), (3, 2), (4, None)]


def test_other_events_and_levels_are_not_suppressed() -> None:
    with pipe(repeats_per_minute=1) as its:
        for _ in range(3):
            its.log.info("a")
            its.log.warning("a")
            its.log.info("b")
        assert [(event["level"], event["event"]) for event in its.events] == [
            ("info", "a"),
            ("warning", "a"),
            ("info", "b"),
        ]


@pytest.mark.parametrize("event", ["call", "call denied"])
def test_lines_for_each_call_and_audit_lines_are_never_suppressed(event: str) -> None:
    with pipe(repeats_per_minute=1) as its:
        for _ in range(1_000):
            its.log.info(event)
        assert len(its.lines) == 1_000


def test_nothing_is_suppressed_where_nobody_wants_it() -> None:
    with pipe(repeats_per_minute=0) as its:
        for _ in range(1_000):
            its.log.error("damaged data")
        assert len(its.lines) == 1_000


def test_nothing_is_lost_at_the_end() -> None:
    with pipe(repeats_per_minute=1) as its:
        for number in range(3):
            its.log.error("damaged data", number=number)
        its.repeats.tell_due(all_of_them=True)
        assert [event["number"] for event in its.events] == [0, 2]


def test_tracebacks_that_are_suppressed_keep_nothing_alive() -> None:
    class Large:
        pass

    def fail() -> None:
        large = Large()  # noqa: F841 - in the frame that the traceback keeps
        raise ValueError("again")

    with pipe(repeats_per_minute=1) as its:
        for _ in range(10):
            try:
                fail()
            except ValueError:
                its.log.exception("call failed")
        gc.collect()
        assert [each for each in gc.get_objects() if type(each) is Large] == []


def test_lines_from_many_threads_are_counted_right() -> None:
    with pipe(repeats_per_minute=5) as its:
        threads = [
            threading.Thread(target=lambda: [its.log.error("damaged data") for _ in range(200)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        its.repeats.tell_due(all_of_them=True)
        assert len(its.events) == 6
        assert its.events[-1]["repeated"] == 8 * 200 - 5 - 1


# -- libraries


def _log() -> None:
    logging.getLogger("grpc._cython.cygrpc").error("it went %s", "wrong")


def _warn() -> None:
    warnings.warn("an old way", DeprecationWarning, stacklevel=1)


def _lose_an_error() -> None:
    async def lose() -> None:
        async def fail() -> None:
            raise ValueError("nobody asked")

        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])
        del task
        gc.collect()

    asyncio.run(lose())


def _misformat() -> None:
    logging.getLogger("careless").warning("%d of %d", "two")  # noqa: PLE1206 - libraries make mistakes


@pytest.mark.parametrize(
    ("happens", "logger", "level", "said"),
    [
        (_log, "grpc._cython.cygrpc", "error", "it went wrong"),
        (_warn, "py.warnings", "warning", "an old way"),
        (_lose_an_error, "asyncio", "error", "Task exception was never retrieved"),
        (_misformat, "careless", "warning", "%d of %d"),
    ],
)
def test_what_libraries_say_comes_the_same_way(happens: Callable[[], None], logger: str, level: str, said: str) -> None:
    with pipe() as its, warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        happens()
        [event] = its.events
        assert (event["event"], event["logger"], event["level"]) == ("message of a library", logger, level)
        assert said in event["text"]


def test_an_error_that_was_lost_is_told_with_its_traceback() -> None:
    with pipe() as its:
        _lose_an_error()
        [event] = its.events
        assert "ValueError: nobody asked" in event["exception"]


def test_a_thread_that_dies_is_told() -> None:
    def fail() -> None:
        raise ValueError("on its own")

    with pipe() as its:
        thread = threading.Thread(target=fail, name="flush-7")
        thread.start()
        thread.join()
        [event] = its.events
        assert (event["event"], event["thread"]) == ("thread ended", "flush-7")
        assert "ValueError: on its own" in event["exception"]


def test_levels_hold_for_libraries_too_whatever_numbers_they_use() -> None:
    with pipe(level="warning") as its:
        logging.getLogger("noisy").info("not shown")
        logging.getLogger("noisy").log(35, "shown")
        logging.getLogger("noisy").log(99, "shown, too")
        assert [event["level"] for event in its.events] == ["warning", "critical"]


def test_loggers_of_libraries_are_suppressed_each_by_itself() -> None:
    with pipe(repeats_per_minute=1) as its:
        for _ in range(5):
            logging.getLogger("one").error("x")
            logging.getLogger("other").error("x")
        assert [event["logger"] for event in its.events] == ["one", "other"]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_traceback_shows_what_a_variable_held(
    form: Literal["console", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(text: str) -> None:
        raise RuntimeError(f"a text of {len(text)} characters")

    configure_logs(form, "info")
    try:
        fail(SECRET)
    except RuntimeError as error:
        structlog.get_logger().error("call failed", exc_info=error)
    shown = capsys.readouterr().err
    assert "a text of 21 characters" in shown
    assert "in fail" in shown
    assert SECRET not in shown
