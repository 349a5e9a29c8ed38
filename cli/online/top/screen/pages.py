"""Draws the head of the screen and the first page, which shows the broker as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text

from quarry_mq.cli.online.top.facts import Member, Migration, Overview
from quarry_mq.cli.online.top.poller import Answer, Known
from quarry_mq.cli.online.top.readings import CallFailed, Failure
from quarry_mq.cli.online.top.screen.tables import (
    BAD,
    GAP,
    GOOD,
    GROUPS,
    LABEL_WIDTH,
    QUIET,
    STRONG,
    TITLE,
    TOPICS,
    WARNING,
    Canvas,
    Column,
    ago_text,
    fitted,
    flow,
    heading,
    item,
    least_text,
    percent_text,
    side_by_side,
    styled,
    table,
    wrapped,
)
from quarry_mq.cli.terminal.quantities import UNKNOWN, bytes_text, count_text, rate_text, span_ms_text, span_text
from quarry_mq.cli.terminal.text import HOUR_MS, cells, sparkline, time_text

CONCERNS_SHOWN: Final = 3
SIDE_BY_SIDE: Final = 120
DISK_WARNING: Final = 0.85
LATE_S: Final = 0.1
RATE_WIDTH: Final = 12
TABLES_HEIGHT_MIN: Final = 11
PEAK_WIDTH: Final = 24


def _lag_text(overview: Overview) -> str:
    return least_text(span_ms_text(overview.lag_ms), is_whole=overview.lag_is_whole)


def _of(member: Member, text: Callable[[Overview], str]) -> str:
    return UNKNOWN if member.overview is None else text(member.overview)


# -- the head


def head(known: Known, canvas: Canvas, status: str) -> list[Text]:
    """Return the head: which broker this is, its state, and its concerns. `status` stands at the right."""
    overview = known.overview.value
    lines = [_name_line(known, overview, canvas), _state_line(known, canvas, status)]
    problem = known.overview.problem
    if problem is not None:
        since = known.overview.problem_since_ms or known.now_ms
        lines += wrapped(_gone_text(problem, since, known), canvas.width, style=BAD)
    if overview is not None:
        shown = overview.concerns[:CONCERNS_SHOWN]
        for concern in shown:
            style = BAD if concern.is_fault else WARNING
            lines += wrapped(concern.text, canvas.width, style=style, first="! ", indent="  ")[:2]
            if concern.command:
                ago = "" if concern.since_ms is None else f"   (for {ago_text(concern.since_ms, known.now_ms)})"
                lines.append(wrapped(f"{concern.command}{ago}", canvas.width, style=QUIET, first="  > ")[0])
        if len(overview.concerns) > len(shown):
            lines.append(styled((f"! and {len(overview.concerns) - len(shown)} more", WARNING)))
    return lines


def _gone_text(problem: CallFailed, since_ms: int, known: Known) -> str:
    if problem.failure is not Failure.GONE:
        return str(problem)
    text = f"NO ANSWER since {time_text(since_ms)} ({ago_text(since_ms, known.now_ms)}), trying again."
    at_ms = known.overview.at_ms
    return text + ("" if at_ms is None else f" The data shown is OLD, from {time_text(at_ms)}.") + f" {problem}"


def _name_line(known: Known, overview: Overview | None, canvas: Canvas) -> Text:
    if overview is None:
        return styled((fitted(known.address, min(len(known.address), canvas.width), plain=canvas.plain), TITLE))
    since = overview.started_at_ms
    up = f"up {ago_text(since, overview.at_ms)}"
    line = styled((overview.name or UNKNOWN, TITLE))
    for part in (
        f"of {overview.cluster or UNKNOWN}",
        overview.version or UNKNOWN,
        up,
        f"since {time_text(since)}",
    ):
        if line.cell_len + 2 + len(part) <= canvas.width:
            line.append(f"{' ' if part.startswith('of ') else '  '}{part}", QUIET if part.startswith("since") else "")
    line.truncate(canvas.width)
    return line


def _state_line(known: Known, canvas: Canvas, status: str) -> Text:
    overview = known.overview.value
    if known.overview.problem is not None:
        word, style = known.overview.problem.failure.value, BAD
    elif overview is None:
        word, style = "asking", QUIET
    elif overview.readiness == "ready":
        word, style = ("ready", GOOD) if not overview.concerns else (f"ready, {_concerns(overview)}", WARNING)
    else:
        word, style = f"NOT READY: {overview.readiness}", BAD
    room = canvas.width - len(status) - 2
    word = fitted(word, max(1, min(len(word), room)), plain=canvas.plain)
    line = styled((word, style))
    if overview is not None and known.overview.problem is None and line.cell_len + len(known.address) + 4 <= room:
        line.append(f"  {known.address}", QUIET)
    line.append(" " * max(1, canvas.width - line.cell_len - len(status)))
    line.append(status, QUIET)
    line.truncate(canvas.width)
    return line


def _concerns(overview: Overview) -> str:
    return "1 concern" if len(overview.concerns) == 1 else f"{len(overview.concerns)} concerns"


# -- the first page


def overview_page(known: Known, canvas: Canvas) -> list[Text]:
    """Return the first page. Tables get the rows that the other parts leave, and are left out on a low canvas."""
    overview = known.overview.value
    if overview is None:
        return [] if known.overview.problem is not None else [styled(("asking the broker", QUIET))]
    lines = [*rates(known, overview, canvas), styled(""), *first_stats(known, overview, canvas.width)]
    others = other_stats(known, overview, canvas.width)
    members = known.members.value or ()
    table_of_members = [] if len(members) < 2 else [styled(""), *members_table(known, members, canvas)]
    left = canvas.height - len(lines) - len(others) - len(table_of_members) - 1
    if left >= TABLES_HEIGHT_MIN:
        return [*lines, *others, *table_of_members, styled(""), *_worst(known, canvas, left)]
    left = canvas.height - len(lines) - 1
    return [*lines, styled(""), *_worst(known, canvas, left), *table_of_members, styled(""), *others]


def rates(known: Known, overview: Overview, canvas: Canvas) -> list[Text]:
    history = known.history.value
    lines = []
    for label, rate, series in (
        ("in", overview.sent_per_second, "sent_per_second"),
        ("out", overview.received_per_second, "received_per_second"),
    ):
        line = styled((f"{label:<{LABEL_WIDTH}}", TITLE), (f"{rate_text(rate)} /s".rjust(RATE_WIDTH), STRONG))
        most = None if history is None else history.most(series)
        peak = f"most {rate_text(most)} /s in 1 h"
        room = canvas.width - line.cell_len - GAP - PEAK_WIDTH - 2
        if room < 12:  # a narrow screen: the hour without its peak
            room, peak = canvas.width - line.cell_len - 2, ""
        if history is not None and room > 4:
            end_ms = max(overview.at_ms, history.at_ms[-1] if history.at_ms else 0)
            values = history.series.get(series, ())
            drawn = cells(history.at_ms, values, end_ms=end_ms, span_ms=HOUR_MS, width=room)
            line.append("  " + sparkline(drawn, plain=canvas.plain), GOOD)
            line.append(f"  {peak}" if peak else "", QUIET)
        lines.append(line)
    return lines


def first_stats(known: Known, overview: Overview, width: int) -> list[Text]:
    """Return the values that change or may need attention, a line for each subject."""
    used = overview.disk_used_share
    disk = UNKNOWN if used is None else f"{percent_text(used)} of {bytes_text(overview.disk_total)} used"
    return [
        *flow(
            "waiting",
            [
                item("ready", least_text(count_text(overview.ready_messages), is_whole=overview.lag_is_whole)),
                item("in flight", least_text(count_text(overview.in_flight_messages), is_whole=overview.lag_is_whole)),
                item("behind by", _lag_text(overview)),
            ],
            width,
        ),
        *flow(
            "storage",
            [
                item("disk", disk, WARNING if used is not None and used >= DISK_WARNING else ""),
                item("log", bytes_text(overview.log_size)),
                item("oldest message", ago_text(overview.oldest_stored_at_ms, overview.at_ms)),
            ],
            width,
        ),
        *flow("slowest", _slowest(known), width),
        *flow("migration", _migration(known.migration, overview), width),
        *flow("jobs", _jobs(known, overview), width),
    ]


def other_stats(known: Known, overview: Overview, width: int) -> list[Text]:
    """Return further values."""
    process = overview.process
    late_s = None if process is None else process.loop_late_seconds
    is_late = late_s is not None and late_s >= LATE_S
    return [
        *flow(
            "messages",
            [
                item("in", count_text(overview.sent)),
                item("out", count_text(overview.received)),
                item("today", _both(overview.sent_today, overview.received_today)),
                item("yesterday", _both(overview.sent_yesterday, overview.received_yesterday)),
            ],
            width,
        ),
        *flow(
            "held",
            [
                item("timers", count_text(overview.timers)),
                item("transactions", count_text(overview.transactions)),
                item("lite topics", count_text(overview.lite_topics)),
            ],
            width,
        ),
        *flow(
            "there",
            [
                item("topics", count_text(overview.topics)),
                item("groups", count_text(overview.groups)),
                item("producers", count_text(overview.producers)),
                item("consumers", count_text(overview.consumers)),
                item("connections", count_text(overview.connections)),
            ],
            width,
        ),
        *flow(
            "process",
            [
                item("cpu", percent_text(known.busy_share())),
                item("memory", bytes_text(None if process is None else process.resident_bytes)),
                item("files", count_text(None if process is None else process.open_files)),
                item("loop late", span_text(late_s) + (" LATE" if is_late else ""), WARNING if is_late else ""),
            ],
            width,
        ),
    ]


def _both(sent: int | None, received: int | None) -> str:
    if sent is None and received is None:
        return UNKNOWN
    return f"{count_text(sent)} in, {count_text(received)} out"


def _slowest(known: Known) -> list[Text]:
    """Return the stage of each call with the highest p99."""
    items = []
    stages = [stage for stage in known.stages() if stage.name != "wait" and stage.p99_s is not None]
    for call in ("send", "receive"):
        of_call = [stage for stage in stages if stage.call == call]
        if not of_call:
            items.append(item(call, "none timed"))
            continue
        worst = max(of_call, key=lambda stage: stage.p99_s or 0.0)
        text = f"{worst.name} p99 {span_text(worst.p99_s)}" + (" SLOW" if worst.is_slow else "")
        items.append(item(call, text, WARNING if worst.is_slow else ""))
    return items


def _migration(answer: Answer[Migration], overview: Overview) -> list[Text]:
    found = answer.value
    phase = (found.phase if found is not None else overview.migration_phase) or UNKNOWN
    items = [item("phase", phase)]
    if phase not in ("file", "rocksdb"):
        lag = overview.migration_lag_bytes if found is None else found.lag_bytes
        items.append(item("behind by", bytes_text(lag)))
    if found is not None:
        if found.problem is not None:
            items.append(item("", "HELD UP (5)", BAD))
        if phase != "rocksdb":
            items.append(item("next", found.next or ("refused now (5)" if found.next_refused else UNKNOWN)))
    return items


def _jobs(known: Known, overview: Overview) -> list[Text]:
    jobs = [job for job in known.jobs.value or () if job.state == "running"][:1]
    items = [item("open", count_text(overview.open_jobs))]
    for job in jobs:
        left = known.left_s(job)
        progress = f"{percent_text(job.share)}" + ("" if left is None else f", {span_text(left)} left")
        items.append(item(job.kind, progress))
    return items


def _member_columns(members: Sequence[Member]) -> Sequence[Column]:
    is_whole = all(member.overview is None or member.overview.lag_is_whole for member in members)
    return (
        Column("member", 0, 0, lambda row, _: row.name, is_right=False),
        Column("state", 8, 1, lambda row, _: row.state, is_right=False),
        Column("in/s", 8, 2, lambda row, _: _of(row, lambda told: rate_text(told.sent_per_second))),
        Column("out/s", 8, 3, lambda row, _: _of(row, lambda told: rate_text(told.received_per_second))),
        Column("behind by", 11 if is_whole else 20, 4, lambda row, _: _of(row, _lag_text)),
        Column("disk", 7, 5, lambda row, _: _of(row, lambda told: percent_text(told.disk_used_share))),
        Column("", 6, 0, lambda row, _: "chosen" if row.is_self else "", is_right=False, style=lambda _: STRONG),
    )


def members_table(known: Known, members: Sequence[Member], canvas: Canvas) -> list[Text]:
    lines = [heading("MEMBERS", "press m for another member", canvas.width)]
    lines += table(_member_columns(members), members, canvas, known.now_ms)
    for member in members:
        if member.overview is None:
            reason = member.problem or "no answer"
            lines += wrapped(f"{member.name}: {reason}", canvas.width, style=WARNING, first="! ", indent="  ")
    return lines


def _worst(known: Known, canvas: Canvas, left: int) -> list[Text]:
    is_wide = canvas.width >= SIDE_BY_SIDE
    rows = max(2, min(20, left - 2 if is_wide else (left - 5) // 2))
    half = (canvas.width - GAP - 1) // 2 if is_wide else canvas.width
    part = Canvas(width=half, height=rows, plain=canvas.plain)
    groups = _first("LARGEST LAG", GROUPS, known.groups, part, known.now_ms)
    topics = _first("BUSIEST TOPICS", TOPICS, known.topics, part, known.now_ms)
    if is_wide:
        return side_by_side(groups, topics, half, GAP + 1)
    return [*groups, styled(""), *topics]


def _first(title: str, columns: Sequence[Column], answer: Answer, canvas: Canvas, now_ms: int) -> list[Text]:  # type: ignore[type-arg]
    page = answer.value
    if page is None:
        problem = "" if answer.problem is None else str(answer.problem)
        return [heading(title, problem or "asking", canvas.width, plain=canvas.plain)]
    old = "OLD" if answer.problem is not None else ""
    if not page.rows:
        return [heading(title, old or "none is counted individually", canvas.width, plain=canvas.plain)]
    return [
        heading(title, old, canvas.width, plain=canvas.plain),
        *table(columns, page.rows[: canvas.height], canvas, now_ms),
    ]
