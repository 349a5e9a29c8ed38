"""The module verifies the pending messages: it reads the log again and compares the result with the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from quarry_mq.protocol.clock import ReportProgress
from quarry_mq.store.message import PhysicalOffset
from quarry_mq.store.offline import OfflineStore
from quarry_mq.store.pending import PendingBefore, PendingMessages, open_pending_engine, reading
from quarry_mq.store.recovery.recovery import bring_up_to
from quarry_mq.store.verify.report import Check, Difference, Findings, Note


class _Waiting(NamedTuple):
    """The object is one message that waits, with its sort key and its words for a report."""

    key: tuple[int, int]
    physical_offset: PhysicalOffset
    words: str


def check_pending(
    store: OfflineStore, before: PendingBefore | None, end: PhysicalOffset, findings: Findings, report: ReportProgress
) -> None:
    """Compare the database with the log up to its watermark; `end` is the end of the log, which is whole.

    Builds the database again in a temporary folder. How often a producer was asked is in no log, and is not compared.
    """
    pending = store.pending_messages()
    if pending is None or pending.up_to is None or pending.up_to > end:
        return  # the next start rebuilds it
    findings.count(Check.PENDING, 0)
    with TemporaryDirectory(prefix="quarry-verify-") as folder:
        expected = PendingMessages(
            open_pending_engine(Path(folder) / "held", create=True), reading(store.log), before=pending.before or before
        )
        try:
            bring_up_to(expected, store.segments, pending.up_to, report)
            for words, wanted, found in (
                ("delayed", _timers(expected), _timers(pending)),
                ("half", _halves(expected), _halves(pending)),
            ):
                _compare(store, words, wanted, found, findings)
        finally:
            expected.close()


def _timers(pending: PendingMessages) -> Iterator[_Waiting]:
    for each in pending.waiting_messages():
        yield _Waiting(
            (each.due_ms, each.physical_offset),
            each.physical_offset,
            f"{each.size} bytes, due at {each.due_ms} ms",
        )


def _halves(pending: PendingMessages) -> Iterator[_Waiting]:
    for each in pending.waiting_halves():
        found = "" if pending.half_of(each.message_id) == each else ", which is not found by its id"
        yield _Waiting(
            (each.queue_offset, each.physical_offset),
            each.physical_offset,
            f"{each.size} bytes, entry {each.queue_offset}, id {each.message_id}{found}",
        )


def _compare(
    store: OfflineStore, words: str, wanted: Iterator[_Waiting], found: Iterator[_Waiting], findings: Findings
) -> None:
    for want, have in _paired(wanted, found):
        findings.count(Check.PENDING)
        if have is None:
            assert want is not None
            _differ(store, want, f"a {words} pending message: {want.words}", "none", findings)
        elif want is None and have.physical_offset < store.minimum:
            findings.note(Note.EXPIRED_PENDING)
        elif want is None:
            _differ(store, have, f"no pending {words} message", have.words, findings)
        elif want.words != have.words:
            _differ(store, have, f"a {words} pending message: {want.words}", have.words, findings)


def _paired(wanted: Iterator[_Waiting], found: Iterator[_Waiting]) -> Iterator[tuple[_Waiting | None, _Waiting | None]]:
    """Yield the messages of the two sides that have the same key together. Both sides come in the order
    of their keys.
    """
    want, have = next(wanted, None), next(found, None)
    while want is not None or have is not None:
        takes_want = have is None or (want is not None and want.key <= have.key)
        takes_have = want is None or (have is not None and have.key <= want.key)
        yield want if takes_want else None, have if takes_have else None
        if takes_want:
            want = next(wanted, None)
        if takes_have:
            have = next(found, None)


def _differ(store: OfflineStore, at: _Waiting, expected: str, found: str, findings: Findings) -> None:
    findings.differ(
        Difference(
            check=Check.PENDING,
            file=store.paths.pending_messages,
            expected=expected,
            found=found,
            physical_offset=at.physical_offset,
        )
    )
