"""`quarry migrate` moves the consume queues of a stopped store from files to RocksDB or back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import one_line, say
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.migration.comparison import AgreementReport
from quarry_mq.store.tools.queue_migration import Migrated, Orders, Plan, Target, plan
from quarry_mq.store.tools.queue_migration import migrate as migrate_store
from quarry_mq.store.tools.queue_repair import repair_agreement


def migrate(
    store: Store,
    *,
    to: Annotated[
        Target | None,
        typer.Option("--to", metavar="rocksdb|file", help="Where to move the queues.", show_default=False),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="In a store with both kinds: rewrite the queues that differ."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done; change nothing.")] = False,
    remove_old: Annotated[
        bool, typer.Option("--remove-old", help="Remove the queues that are no longer used. Default: set them aside.")
    ] = False,
    leave_out_names: Annotated[
        bool,
        typer.Option(
            "--leave-out-names", help="With --to file: drop light queues whose names are not possible as file names."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Move the consume queues of a store to RocksDB or to RocketMQ's files, in one run.

    The new queues are made beside the old ones, every entry of both is compared, and only then the store uses the new
    ones. The command may be interrupted at any moment, and run again. The old queues are kept in a directory whose name
    is shown: delete it when you no longer need it. Exit status 0: done, or nothing to do, 1: old and new queues differ,
    and the store is unchanged, 2: it could not run.
    """
    if (to is None) is not repair:
        raise typer.BadParameter("either --to or --repair")
    if to is None:
        _repair(store, as_json=as_json)
        return
    orders = Orders(target=to, asked_by="quarry migrate", remove_old=remove_old, leave_out_names=leave_out_names)
    disk = PosixDisk()
    if dry_run:
        with reporting_errors(store):
            planned = plan(disk, store, orders)
        _show_plan(planned, to, as_json=as_json)
        return
    with reporting_errors(store), logs_aside(logging.ERROR), shown_progress() as report:
        done = migrate_store(disk, SystemClock(), store, orders, report=report)
    show(done, as_json=as_json)
    raise typer.Exit(Exit.FINE if done.phase is to.phase else Exit.FINDING)


def _repair(store: Path, *, as_json: bool) -> None:
    with reporting_errors(store), logs_aside(logging.ERROR), shown_progress() as report:
        done = repair_agreement(PosixDisk(), SystemClock(), store, asked_by="quarry migrate --repair", report=report)
    if as_json:
        queues = [{"topic": queue.topic, "queueId": queue.number} for queue in done.queues]
        fields = {"phase": done.phase.value, "found": _fields(done.found), "queues": queues, "left": _fields(done.left)}
        say(json_line(fields))
    else:
        _show_differences(done.found)
        kind = "file queues" if done.phase.reads_rocksdb else "RocksDB"
        for queue in done.queues:
            say(f"{one_line(queue.topic)}/{queue.number}: rewritten in {kind}")
        say(f"{sum(done.left.differences.values())} differences are left")
    raise typer.Exit(Exit.FINE if done.left.agrees else Exit.FINDING)


def _show_differences(report: AgreementReport) -> None:
    for each in report.first:
        at = "" if each.queue_offset is None else f"@{each.queue_offset}"
        say(f"{one_line(each.topic)}/{each.queue_number}{at}: {each.kind}: {one_line(each.text)}")
    differences = sum(report.differences.values())
    say(f"{report.queues} queues with {report.units} entries compared, {differences} differences")


def _show_plan(planned: Plan, to: Target, *, as_json: bool) -> None:
    if as_json:
        say(json_line({"dryRun": True, "from": planned.origin.value, "to": to.phase.value, "steps": planned.steps}))
        return
    say(f"the store is in phase {planned.origin.value}")
    for number, step in enumerate(planned.steps, 1):
        say(f"{number}  {step}")


def show(done: Migrated, *, as_json: bool) -> None:
    """Print one JSON object, or for people the differences and the new state of the store."""
    report = done.report
    if as_json:
        fields: dict[str, object] = {
            "from": done.origin.value,
            "phase": done.phase.value,
            "comparison": None if report is None else _fields(report),
            "leftOut": done.left_out,
            "aside": None if done.aside is None else str(done.aside),
        }
        say(json_line(fields))
        return
    if report is not None:
        _show_differences(report)
    if done.left_out:
        say(f"{done.left_out} light queues were left out: their names are not possible as file names")
    if done.aside is not None:
        say(f"the old queues are in {done.aside}")
    say(f"the store was in phase {done.origin.value} and is now in phase {done.phase.value}")


def _fields(report: AgreementReport) -> dict[str, object]:
    return {
        "beganAtMs": report.began_at_ms,
        "endedAtMs": report.ended_at_ms,
        "logBegin": report.log_begin,
        "logEnd": report.log_end,
        "queues": report.queues,
        "units": report.units,
        "differences": dict(report.differences),
        "notes": dict(report.notes),
        "first": [
            {
                "kind": each.kind,
                "topic": each.topic,
                "queueId": each.queue_number,
                "queueOffset": each.queue_offset,
                "text": each.text,
            }
            for each in report.first
        ],
    }
