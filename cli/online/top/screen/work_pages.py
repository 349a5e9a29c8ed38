"""Draws the pages of stages, and of jobs and migration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from quarry_mq.cli.online.top.facts import Job, Migration
from quarry_mq.cli.online.top.poller import Known
from quarry_mq.cli.online.top.screen.tables import (
    BAD,
    GOOD,
    QUIET,
    STRONG,
    WARNING,
    Canvas,
    Column,
    bar,
    flow,
    heading,
    item,
    latency_text,
    percent_text,
    styled,
    table,
    wrapped,
)
from quarry_mq.cli.online.top.stats import StageStats
from quarry_mq.cli.terminal.quantities import UNKNOWN, bytes_text, count_text, span_text
from quarry_mq.cli.terminal.text import time_text

CALLS: Final = (("send", "SENDS"), ("receive", "RECEIVES"))
PHASES: Final = ("file", "double_write", "backfilling", "verified", "reading_rocksdb", "rocksdb")
STEPS_SHOWN: Final = 5
ENDED_SHOWN: Final = 10
PROGRESS_WIDTH: Final = 12
SHARE_WIDTH: Final = 10
MEANINGS: Final = {
    ("send", "check"): "bytes of a call are parsed and checked",
    ("send", "gather"): "the send waits for its batch",
    ("send", "append"): "records are appended to the log",
    ("send", "flush"): "records are flushed to disk",
    ("send", "dispatch"): "entries are written to the consume queues",
    ("send", "wake"): "waiting receives are served",
    ("send", "answer"): "the sends are answered",
    ("receive", "wait"): "wait for messages (no work)",
    ("receive", "take"): "queues are read, deliveries created",
    ("receive", "read"): "of that: records are read and checked",
    ("receive", "write"): "deliveries are written",
    ("receive", "answer"): "answers are built and handed over",
}


# -- stages


def stages_page(known: Known, canvas: Canvas) -> list[Text]:
    """Return the page that shows how the time of sends and receives is spent."""
    stats = known.stages()
    if not stats:
        return [styled(("unknown: the broker has not reported it yet", QUIET))]
    watched_s = known.watched_s
    span = "since the broker's start" if watched_s is None else f"in the last {span_text(watched_s)}"
    lines: list[Text] = []
    for call, title in CALLS:
        of_call = [stat for stat in stats if stat.call == call]
        remark = span if any(stat.values for stat in of_call) else f"none timed {span}"
        lines.append(heading(title, remark, canvas.width, plain=canvas.plain))
        lines += table(_stage_columns(known, of_call, canvas), of_call, canvas, known.now_ms)
        lines.append(styled(""))
    return lines[:-1]


def _stage_columns(known: Known, stats: Sequence[StageStats], canvas: Canvas) -> list[Column]:
    most = max((stat.share or 0.0 for stat in stats), default=0.0)

    def mark(stat: StageStats) -> str:
        if stat.is_slow:
            return "SLOW"
        return "most" if stat.share is not None and stat.share == most and most > 0 else ""

    def latency(stat: StageStats, seconds: float | None) -> str:
        return latency_text(seconds, bound_s=known.last_bound_s(stat.call, stat.name))

    def meaning(stat: StageStats, _: int) -> str:
        return MEANINGS.get((stat.call, stat.name), "")

    def share(stat: StageStats, _: int) -> str:
        return "-" if stat.share is None else percent_text(stat.share)

    def drawn(stat: StageStats, _: int) -> str:
        return "" if stat.share is None else bar(stat.share, SHARE_WIDTH, plain=canvas.plain)

    columns = [
        Column("p50", 8, 2, lambda row, _: latency(row, row.p50_s)),
        Column("p99", 8, 1, lambda row, _: latency(row, row.p99_s), style=lambda row: WARNING if row.is_slow else ""),
        Column("share", 5, 4, share),
        Column("", SHARE_WIDTH, 5, drawn, is_right=False, style=lambda _: GOOD),
        Column(
            "", 4, 3, lambda row, _: mark(row), is_right=False, style=lambda row: WARNING if row.is_slow else STRONG
        ),
        Column("timed", 9, 7, lambda row, _: count_text(row.values)),
        Column("", 33, 6, meaning, is_right=False, style=lambda _: QUIET),
    ]
    return [Column("stage", 9, 0, lambda row, _: row.name, is_right=False), *columns]


# -- jobs and migration


def work_page(known: Known, canvas: Canvas) -> list[Text]:
    """Return the page of open and recently ended jobs, and of the migration."""
    return [*_jobs(known, canvas), styled(""), *_migration(known, canvas)]


def _jobs(known: Known, canvas: Canvas) -> list[Text]:
    jobs = known.jobs.value
    problem = known.jobs.problem
    if jobs is None:
        return [heading("JOBS", "asking" if problem is None else str(problem), canvas.width, plain=canvas.plain)]
    running = [job for job in jobs if job.is_open]
    ended = [job for job in jobs if not job.is_open][:ENDED_SHOWN]
    remark = f"{len(running)} open" + ("" if problem is None else ", OLD")
    lines = [heading("JOBS", remark, canvas.width, plain=canvas.plain)]
    if not jobs:
        return [*lines, styled(("none", QUIET))]
    lines += table(_job_columns(known, canvas), [*running, *ended], canvas, known.now_ms)
    for job in running:
        if job.remark:
            lines += wrapped(f"{job.kind}: {job.remark}", canvas.width, style=WARNING, first="! ", indent="  ")
    return lines


def _job_columns(known: Known, canvas: Canvas) -> list[Column]:
    def done(job: Job, _: int) -> str:
        return percent_text(job.share) if job.state == "running" else "-"

    def drawn(job: Job, _: int) -> str:
        return "" if job.share is None or not job.is_open else bar(job.share, PROGRESS_WIDTH, plain=canvas.plain)

    def left(job: Job, _: int) -> str:
        return span_text(known.left_s(job)) if job.state == "running" else "-"

    def result(job: Job, _: int) -> str:
        counts = ", ".join(f"{name} {count_text(count)}" for name, count in sorted(job.counts.items()))
        return counts or (f"{count_text(job.done)} looked at" if job.done else "")

    def state_style(job: Job) -> str:
        return BAD if job.state == "failed" else GOOD if job.state == "running" else ""

    return [
        Column("job", 0, 0, lambda job, _: job.kind + (" (dry run)" if job.is_dry_run else ""), is_right=False),
        Column("state", 9, 1, lambda job, _: job.state, is_right=False, style=state_style),
        Column("done", 7, 2, done),
        Column("", PROGRESS_WIDTH, 5, drawn, is_right=False, style=lambda _: GOOD),
        Column("left", 11, 3, left),
        Column("so far", 24, 4, result, is_right=False),
        Column("asked at", 20, 6, lambda job, _: time_text(job.id), is_right=False),
        Column("by", 16, 8, lambda job, _: job.asked_by, is_right=False),
        Column("id", 13, 7, lambda job, _: str(job.id)),
    ]


def _migration(known: Known, canvas: Canvas) -> list[Text]:
    found, problem = known.migration.value, known.migration.problem
    if found is None:
        return [heading("MIGRATION", "asking" if problem is None else str(problem), canvas.width, plain=canvas.plain)]
    width = canvas.width
    lines = [heading("MIGRATION", "" if problem is None else "OLD", width)]
    phases = PHASES if found.phase in PHASES else (found.phase or UNKNOWN,)
    lines += flow("phase", [_phase(phase, is_now=phase == found.phase) for phase in phases], width)
    lines += flow("stores", [item("read from", found.read), item("offsets by", found.assign)], width)
    if found.phase not in ("file", "rocksdb"):
        lines += flow("second", [item("store behind by", bytes_text(found.lag_bytes))], width)
    if found.backfill_total is not None and found.backfill_done is not None:
        share = 1.0 if not found.backfill_total else found.backfill_done / found.backfill_total
        of = f"{bytes_text(found.backfill_done)} of {bytes_text(found.backfill_total)}"
        drawn = styled((bar(share, PROGRESS_WIDTH, plain=canvas.plain), GOOD), f" {percent_text(share)}")
        lines += flow("backfill", [drawn, item("", of)], width)
    if found.compared_queues is not None:
        compared = f"{count_text(found.compared_queues)} queues, {count_text(found.compared_units)} entries"
        lines += flow("comparing", [item("", f"{compared} so far")], width)
    if found.differences is not None:
        text = "none" if not found.differences else f"{count_text(found.differences)} FOUND"
        lines += flow("differences", [item("", text, BAD if found.differences else GOOD)], width)
    lines += _steps(found, width)
    return lines


def _phase(phase: str, *, is_now: bool) -> Text:
    return styled((f"[{phase}]", STRONG) if is_now else (phase, QUIET))


def _steps(found: Migration, width: int) -> list[Text]:
    def sentence(label: str, text: str, style: str = "") -> list[Text]:
        return wrapped(text, width, style=style, first=f"{label:<11}", indent=" " * 11)

    lines: list[Text] = []
    if found.next:
        first = f", after the queues are compared: {found.comparison_first}" if found.comparison_first else ""
        lines += sentence("next", f"{found.next}{first}")
    else:
        lines += sentence("next", f"refused: {found.next_refused}" if found.next_refused else "none")
    lines += sentence("back", found.back or (f"refused: {found.back_refused}" if found.back_refused else "none"))
    for label, text in (("in doubt", found.doubt), ("HELD UP", found.problem)):
        if text:
            lines += sentence(label, text, BAD if label == "HELD UP" else WARNING)
    if found.removing:
        lines += sentence("removing", "leftovers of the last step")
    for step in found.steps[-STEPS_SHOWN:]:
        lines += sentence("step", f"{time_text(step.at_ms)} {step.before} to {step.after} by {step.asked_by}", QUIET)
    return lines
