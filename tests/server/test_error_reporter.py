"""Faults are logged, and not too often."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict

from quarry_mq.kv import EngineClosed, EngineCorrupt, KvError
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.server.observability.error_reporter import PLACES_MAX, REPEATED_AFTER_S, ErrorReporter
from quarry_mq.store.errors import (
    BrokerError,
    Busy,
    MessageGivenUp,
    SecretsUnreadable,
    StoreDamaged,
    StorePoisoned,
    TopicNotFound,
)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.damage_met = 0
        self.passed_over = 0
        self.error_reporter = ErrorReporter(self.clock, damage_met=self._count, passed_over=self._count_passed)

    def _count(self) -> None:
        self.damage_met += 1

    def _count_passed(self) -> None:
        self.passed_over += 1

    def lines(self, *errors: Exception) -> list[EventDict]:
        with structlog.testing.capture_logs() as lines:
            for error in errors:
                self.error_reporter.report(error, peer="10.0.0.1:77")
        return list(lines)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def damage(offset: int) -> StoreDamaged:
    return StoreDamaged(Path("/data/commitlog/0"), f"the record at offset {offset} is damaged")


@pytest.mark.parametrize(
    "error", [damage(7), EngineCorrupt("block checksum mismatch in 000012.sst")], ids=["record", "table"]
)
def test_damage_gets_one_line_in_a_while_and_is_counted_each_time(bench: Bench, error: Exception) -> None:
    (line,) = bench.lines(*[error] * 1_000)
    assert line == {"event": "damaged data", "log_level": "error", "error": str(error), "peer": "10.0.0.1:77"}
    bench.clock.advance(REPEATED_AFTER_S)
    assert len(bench.lines(error, error)) == 1
    assert bench.damage_met == 1_002


def test_each_damaged_place_has_its_line_up_to_a_bound(bench: Bench) -> None:
    everywhere = [damage(offset) for offset in range(PLACES_MAX + 100)]
    assert len(bench.lines(*everywhere, *everywhere)) == PLACES_MAX
    bench.clock.advance(REPEATED_AFTER_S)
    assert [line["error"] for line in bench.lines(everywhere[-1])] == [str(everywhere[-1])]


def test_a_record_is_one_place_whoever_reads_it(bench: Bench) -> None:
    """The check of the log does not know of which queue entry it is."""
    path = Path("/data/commitlog/0")
    told = StoreDamaged(path, "the record at offset 7 is damaged", record_at=7)
    again = StoreDamaged(path, "the record at offset 7, consume queue entry 3, is damaged", record_at=7)
    assert [line["error"] for line in bench.lines(told, again)] == [str(told)]
    assert [each.text for each in bench.error_reporter.damage()] == [str(told)]
    assert bench.damage_met == 2


def test_a_file_that_cannot_be_read_gets_one_line_in_a_while(bench: Bench) -> None:
    """A device that died is met by every call of every client."""
    error = KvError("IO error: While pread offset 0 len 196: /data/quarry/000009.sst: Input/output error")
    (line,) = bench.lines(*[error] * 1_000)
    assert line == {"event": "disk error", "log_level": "error", "error": str(error), "peer": "10.0.0.1:77"}
    assert bench.damage_met == 0
    assert [type(line["exc_info"]) for line in bench.lines(EngineClosed("closed"))] == [EngineClosed]


def test_a_key_that_is_missing_gets_one_line_in_a_while(bench: Bench) -> None:
    error = SecretsUnreadable("secret 1 of user orders cannot be read")
    (line,) = bench.lines(*[error] * 100)
    assert line == {"event": "no key for secrets", "log_level": "error", "error": str(error), "peer": "10.0.0.1:77"}


def test_a_message_that_was_given_up_gets_one_line_in_a_while_and_is_counted_each_time(bench: Bench) -> None:
    error = MessageGivenUp("/data/commitlog/0: the record at offset 7 was damaged and has been given up")
    (line,) = bench.lines(*[error] * 100)
    assert line == {"event": "message passed over", "log_level": "warning", "error": str(error), "peer": "10.0.0.1:77"}
    assert (bench.passed_over, bench.damage_met) == (100, 0)


def test_what_nobody_expected_has_a_traceback_each_time(bench: Bench) -> None:
    lines = bench.lines(RuntimeError("?"), BrokerError("?"), RuntimeError("?"))
    assert [type(line["exc_info"]) for line in lines] == [RuntimeError, BrokerError, RuntimeError]
    assert bench.damage_met == 0


def test_errors_of_clients_and_of_a_poisoned_store_are_not_logged(bench: Bench) -> None:
    assert bench.lines(TopicNotFound("no topic"), Busy("too many"), StorePoisoned("fdatasync failed")) == []
