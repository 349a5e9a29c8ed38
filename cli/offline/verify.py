"""`quarry verify` checks whether all parts of a store agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import typer

from quarry_mq.cli.offline.arguments import DifferenceLimit, Json, Store
from quarry_mq.cli.offline.opened_store import opened, reporting_errors
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.backup import store_in
from quarry_mq.store.follower import is_followed, point_of_follower
from quarry_mq.store.fs import Disk, PosixDisk
from quarry_mq.store.verify import DIFFERENCES_MAX, VerifyReport
from quarry_mq.store.verify import verify as verify_store

COLUMNS: Final = ("check", "checked", "differences")


def verify(
    store: Store,
    *,
    limit: DifferenceLimit = DIFFERENCES_MAX,
    as_json: Json = False,
) -> None:
    """Compare commit log, consume queues, key index and metadata of a store or a backup, and show where they differ.

    Every record must have its consume queue entry and every entry its record; min and max offsets, checkpoint, topics,
    groups and deliveries must match them. A copy that runs and a store of `quarry follow` are verified while they
    follow. Exit status 0: all agree, 1: something differs, 2: it could not be read.
    """
    report = verified(store, limit)
    show(report, as_json=as_json)
    raise typer.Exit(Exit.FINE if report.agrees else Exit.FINDING)


def verified(store: Path, limit: int = DIFFERENCES_MAX) -> VerifyReport:
    """Verify a store and return the report. If the store cannot be read, the command ends here."""
    disk = PosixDisk()
    with reporting_errors(store):
        store = store_in(disk, store)
        is_point_due = is_followed(disk, store)
    if is_point_due:
        return _verified_point(disk, store, limit)
    with opened(store) as open_store, shown_progress() as report:
        return verify_store(open_store, report, differences_max=limit)


def _verified_point(disk: Disk, store: Path, limit: int) -> VerifyReport:
    """Verify a store that another process follows, as it is at a point that this process makes."""
    with (
        reporting_errors(store),
        shown_progress() as report,
        point_of_follower(disk, store, SystemClock(), report) as point,
        opened(point.root) as open_store,
    ):
        open_store.log_limit = point.log_end
        found = verify_store(open_store, report, differences_max=limit)
    differences = [replace(each, file=store / each.file.relative_to(point.root)) for each in found.differences]
    return replace(found, differences=differences)


def show(report: VerifyReport, *, as_json: bool) -> None:
    """Print the differences first and the verdict last."""
    for difference in report.differences:
        say(json_line(difference.as_json()) if as_json else f"{difference.check.value}: {word(str(difference))}")
    if as_json:
        say(json_line(report.as_json()))
        return
    rows: list[dict[str, object]] = [
        {"check": check.value, "checked": count.checked, "differences": count.differences}
        for check, count in report.counts.items()
    ]
    rows += [{"check": note.value, "checked": number, "differences": None} for note, number in report.notes.items()]
    print_rows(rows, COLUMNS, as_json=False)
    hint = (
        ""
        if report.agrees or report.clean_stop
        else "; the last stop was not clean, and a start of the broker may repair this"
    )
    verdict = "agree" if report.agrees else "differ"
    say(f"log [{report.log_begin}, {report.log_end}): the parts of the store {verdict}{hint}")
