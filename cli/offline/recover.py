"""`quarry recover` shows what a start would do to a store, and makes repairs that a start must not make by itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.exit import Exit
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say, word
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.errors import NotAStore
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import StoreKind, inspect_store
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.opening.preview import preview
from quarry_mq.store.opening.repair import Damage, Orders
from quarry_mq.store.recovery.recovery import Findings
from quarry_mq.store.recovery.verdict import ending_of
from quarry_mq.store.settings import StoreSettings


def recover(
    store: Store,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done; change nothing.")] = False,
    replace_damaged: Annotated[
        bool,
        typer.Option(
            "--replace-damaged",
            help="Give up damaged durable records: keep a copy of their bytes, and write fillers in their place.",
        ),
    ] = False,
    rebuild_queues: Annotated[
        bool,
        typer.Option("--rebuild-queues", help="Set the queues' database aside and rebuild it from the log."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Recover a store as the broker does at its start, and close it as after a clean stop.

    Exit status 0: nothing was damaged, 1: something was, or still is, 2: it could not run.
    """
    orders = Orders(replace_damaged=replace_damaged, rebuild_queues=rebuild_queues)
    with reporting_errors(store), logs_aside(logging.WARNING):
        outcome = _preview(store, orders) if dry_run else _recover(store, orders)
    _show(outcome, as_json=as_json)
    raise typer.Exit(Exit.FINDING if outcome.findings else Exit.FINE)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The result to show: findings for people, numbers for programs."""

    findings: list[str]
    log: Findings
    damage: Damage | None
    cut_bytes: int
    kept: list[str]
    dry_run: bool


def _preview(root: Path, orders: Orders) -> _Outcome:
    with shown_progress() as report:
        seen = preview(PosixDisk(), root, orders, report)
    findings = []
    if seen.queues_damaged is not None:
        findings.append(f"the queues' database is damaged: {seen.queues_damaged}; --rebuild-queues rebuilds it")
    if seen.refusal is not None:
        findings.append(f"a start would refuse: {seen.refusal}")
    if seen.cut_bytes:
        findings.append(f"{seen.cut_bytes} bytes after offset {seen.findings.end} would be cut off and kept")
    findings += _damage_texts(seen.damage, "would be")
    return _Outcome(findings, seen.findings, seen.damage, seen.cut_bytes, [], dry_run=True)


def _recover(root: Path, orders: Orders) -> _Outcome:
    disk = PosixDisk()
    if inspect_store(disk, root).kind is StoreKind.NEW:
        raise NotAStore(root, "there is no store in this directory")
    with shown_progress() as report:
        opened = open_store(StoreSettings(root=root), disk=disk, clock=SystemClock(), report=report, orders=orders)
    opened.close()
    log, removed = opened.recovery.findings, opened.recovery.removed
    findings = _damage_texts(opened.given_up, "were")
    if removed.kept_bytes:
        findings.append(f"{removed.kept_bytes} bytes after offset {log.end} were cut off and kept")
    kept = [str(path) for path in removed.kept]
    return _Outcome(findings, log, opened.given_up, removed.kept_bytes, kept, dry_run=False)


def _damage_texts(damage: Damage | None, verb: str) -> list[str]:
    if damage is None:
        return []
    texts = [
        f"{each.end - each.begin} bytes at offset {each.begin} {verb} replaced: {each.reason}"
        for each in damage.stretches
    ]
    if damage.tail_is_lost:
        texts.append(f"everything durable from offset {damage.log_end} on {verb} given up")
    return texts


def _show(outcome: _Outcome, *, as_json: bool) -> None:
    """Print one JSON object, or the findings and a line of numbers."""
    log = outcome.log
    if as_json:
        say(json_line(_fields(outcome)))
        return
    for finding in outcome.findings:
        say(word(finding))
    verb = "would be" if outcome.dry_run else "were"
    say(f"log [{log.start}, {log.end}) read: {log.records} records, of which {log.dispatched} {verb} dispatched")


def _fields(outcome: _Outcome) -> dict[str, object]:
    log, damage = outcome.log, outcome.damage
    stretches = [] if damage is None else damage.stretches
    return {
        "dryRun": outcome.dry_run,
        "findings": outcome.findings,
        "start": log.start,
        "end": log.end,
        "endedBy": ending_of(log.stopped_by).value,
        "durableUpTo": log.durable_up_to,
        "verdict": log.verdict.value,
        "records": log.records,
        "dispatched": log.dispatched,
        "queuesWereAhead": log.queues_were_ahead,
        "cutBytes": outcome.cut_bytes,
        "kept": outcome.kept,
        "damaged": [{"begin": each.begin, "end": each.end, "reason": each.reason} for each in stretches],
        "tailLostFrom": damage.log_end if damage is not None and damage.tail_is_lost else None,
    }
