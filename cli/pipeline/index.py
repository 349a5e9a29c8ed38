"""`quarry pipeline index` rebuilds the tiered key index of a store from its log."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.pipeline.session import Conf, Master, spark_session
from quarry_mq.cli.terminal.text import say
from quarry_mq.cli.terminal.times import Since, Until, option_ms
from quarry_mq.store.fs import PosixDisk

PHASES = ("reading the log", "writing the index")


def index(
    store: Store,
    *,
    since: Since = None,
    until: Until = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", metavar="N", min=1, help="Slots per file. Default: as before, or the broker's default."
        ),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(
            "--items", metavar="N", min=1, help="Items per file. Default: as before, or the broker's default."
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Rebuild the tiered key index of a store from its log, compacted, on Spark.

    With a range of times only keys of messages stored then are indexed; a broker goes on where it ends. The old index
    is set aside. No broker may run on the store.

    Exit status 0: it is done, 1: the log is damaged, 2: it could not run. After 1 or 2 the store is unchanged.
    """
    from_ms, to_ms = option_ms(since, "--since"), option_ms(until, "--until")
    begun_s = time.perf_counter()
    with spark_session("index", store, master, conf, PHASES) as spark:
        from quarry_mq.pipeline.index import IndexWish, build_index

        wish = IndexWish(from_ms=from_ms, to_ms=to_ms, slots=slots, items=items)
        done = build_index(spark, PosixDisk(), store, wish)
    took_s = time.perf_counter() - begun_s
    if as_json:
        fields = {
            "items": done.items,
            "files": done.files,
            "from": done.begin,
            "to": done.up_to,
            "aside": None if done.aside is None else str(done.aside),
            "seconds": round(took_s, 1),
        }
        say(json_line(fields))
        return
    say(f"{done.items:,} keys of [{done.begin}, {done.up_to}) in {done.files} files, in {took_s:.1f} s")
    if done.aside is not None:
        say(f"the old index is kept in {done.aside}")
