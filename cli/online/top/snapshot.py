"""Prints everything that is known at a moment, as JSON for programs or as plain text."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any, Final

from quarry_mq.cli.online.top.poller import CALLS, Answer, Known
from quarry_mq.cli.online.top.screen.pages import head, overview_page
from quarry_mq.cli.online.top.screen.tables import Canvas
from quarry_mq.cli.online.top.screen.work_pages import stages_page, work_page
from quarry_mq.cli.online.top.stats import StageStats
from quarry_mq.cli.terminal.text import time_text

ASCII: Final = str.maketrans({"µ": "u"})
ROWS: Final = 10
"""Rows of topics and of groups in plain text."""
STAGES: Final = "stages"
"""Field of overviews that is left out: histograms since the start. Recent statistics of stages are given beside it."""


def plain_text(known: Known, canvas: Canvas) -> str:
    """Return the pages one below the other."""
    pages = [head(known, canvas, time_text(known.now_ms))]
    if known.overview.value is not None:
        pages += [overview_page(known, canvas), stages_page(known, canvas), work_page(known, canvas)]
    text = "\n\n".join("\n".join(line.plain.rstrip() for line in page) for page in pages)
    return text.translate(ASCII) if canvas.plain else text


def object_of(known: Known) -> dict[str, object]:
    """Return everything as one JSON object: null is unknown, and `problems` says why.

    Names are those of the protocol.
    """
    page: dict[str, object] = {"at": known.now_ms, "address": known.address}
    page["overview"] = _value(known.overview.value)
    page["stages"] = [_stage(stage) for stage in known.stages()]
    page["stagesSeconds"] = known.watched_s
    page["cpuShare"] = known.busy_share()
    for kind in ("topics", "groups"):
        found: Answer[Any] = getattr(known, kind)
        page[kind] = None if found.value is None else _value(found.value.rows)
    for kind in ("migration", "members"):
        page[kind] = _value(getattr(known, kind).value)
    page["jobs"] = None if known.jobs.value is None else [
        {**_value(job), "secondsLeft": known.left_s(job)} for job in known.jobs.value
    ]  # fmt: skip
    page["problems"] = {kind: str(getattr(known, kind).problem) for kind in CALLS if getattr(known, kind).problem}
    return page


def _stage(stage: StageStats) -> dict[str, object]:
    return {
        "call": stage.call,
        "name": stage.name,
        "values": stage.values,
        "p50Seconds": _finite(stage.p50_s),
        "p99Seconds": _finite(stage.p99_s),
        "share": stage.share,
        "slow": stage.is_slow,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _value(value: Any) -> Any:
    if is_dataclass(value):
        return {_camel(each.name): _value(getattr(value, each.name)) for each in fields(value) if each.name != STAGES}
    if hasattr(value, "_asdict"):  # a NamedTuple
        return {_camel(name): _value(each) for name, each in value._asdict().items()}
    if isinstance(value, tuple):
        return [_value(each) for each in value]
    return _finite(value) if isinstance(value, float) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
