"""`quarry export-metadata` writes topics, groups and consumer offsets for RocketMQ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.opened_store import opened
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.pending import TIMERS
from quarry_mq.store.rocketmq import TIMER_STATE, Form
from quarry_mq.store.rocketmq import export_metadata as export


def export_metadata(
    store: Store,
    *,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder to write to: RocketMQ's config/; created if it does not exist.",
        ),
    ],
    form: Annotated[
        Form | None, typer.Option("--format", metavar="json|rocksdb", help="Format of the files. Default: json.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write topics, groups, offsets and the progress of delayed messages, so that RocketMQ can go on with a store.

    JSON files that are there are kept as `.bak`. Exit status 2: it could not run.
    """
    with opened(store) as open_store:
        now_ms = SystemClock().wall_ms()
        pending = open_store.pending_progress(now_ms)
        done = export(
            open_store.disk,
            open_store.state_engine(),
            output,
            form or Form.JSON,
            now_ms=now_ms,
            pending=pending,
            timers_end=0 if pending is None else open_store.queue_reader().bounds(TIMERS).maximum,
        )
        stale = [path for name in TIMER_STATE if open_store.disk.exists(path := open_store.paths.root / name)]
    fields = {
        "topics": done.topics,
        "groups": done.groups,
        "offsets": done.offsets,
        "setBack": done.lowered,
        "held": pending is not None,
        "remove": [str(path) for path in stale],
        "paths": [str(path) for path in done.paths],
    }
    if as_json:
        say(json_line(fields))
        return
    say(f"{done.topics} topics, {done.groups} groups, {done.offsets} consumer offsets")
    if done.lowered:
        say(f"{done.lowered} offsets were set back to messages in flight, which will be delivered again")
    if pending is None:
        say("the progress of delayed messages is unknown: start and stop a broker on the store first")
    for path in stale:
        say(f"{path}: remove this before RocketMQ starts, or it delivers delayed messages again")
    for path in done.paths:
        say(str(path))
