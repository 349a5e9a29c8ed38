"""`quarry overview` and `quarry history` show a live broker or its cluster at a glance, and the last hour."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isnan
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.online.connection.administration import known, known_rounded, known_seconds, known_time, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.online.connection.concerns import concerns_of
from quarry_mq.cli.online.connection.members import AllMembers, name_missing
from quarry_mq.cli.terminal.output import print_object, print_rows, speaks_utf8
from quarry_mq.cli.terminal.quantities import number_text
from quarry_mq.cli.terminal.text import HOUR_MS, cells, say, sparkline, time_text, word
from quarry_mq.protocol.proto.quarry.admin.v1 import overview_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.members_pb2_grpc import AllMembersServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1.overview_pb2_grpc import OverviewServiceStub

CALL_TIMEOUT_S: Final = 10.0
MEMBER_COLUMNS: Final = (
    "name",
    "state",
    "sentPerSecond",
    "receivedPerSecond",
    "ready",
    "inFlight",
    "lagSeconds",
    "connections",
    "diskUsedPercent",
    "readiness",
)
HISTORY_COLUMNS: Final = ("name", "unit", "last", "least", "most", "lastHour")
LAG_FIELDS: Final = ("ready", "inFlight", "lagSeconds")
SPARKLINE_WIDTH: Final = 60
"""Columns of a sparkline: one for each minute."""


def overview(
    *,
    all_members: Annotated[
        bool, typer.Option("--all", help="All members of the broker's cluster, one row each.")
    ] = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the state of a broker at a glance: rates, lag, disk usage and problems.

    What needs attention comes first, each with the command that helps.

    `-` stands for an unknown value, such as the messages of a day that began before the broker. `at least` marks a lag
    when there are more groups than the broker counts.
    """
    with service_port(admin, OverviewServiceStub) as broker:
        if all_members:
            answer = broker.ListOverviews(pb.ListOverviewsRequest(), timeout=CALL_TIMEOUT_S)
            rows = map(_member_fields, answer.members)
            shown = rows if as_json else ({**dict.fromkeys(MEMBER_COLUMNS), **_for_people(row)} for row in rows)
            print_rows(shown, MEMBER_COLUMNS, as_json=as_json, kind="members")
            return
        found = broker.GetOverview(pb.GetOverviewRequest(), timeout=CALL_TIMEOUT_S)
    fields = overview_fields(found)
    if as_json:
        print_object(fields, as_json=True)
        return
    for concern in concerns_of(found):
        since = "" if concern.since is None else f" (since {concern.since})"
        say(f"{concern.severity.upper():<7}  {concern.text}{since}")
        if concern.command:
            say(f"{'':<7}  -> {concern.command}")
    print_object({**_for_people(fields), "concerns": len(found.concerns)}, as_json=False)


def history(
    series: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERIES]...", help="Only these series, such as sent_per_second. Default: all.", show_default=False
        ),
    ] = None,
    *,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic, not of the broker.", show_default=False),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", metavar="GROUP", help="Of this group, not of the broker.", show_default=False),
    ] = None,
    all_members: AllMembers = False,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the stats of the last hour, one line per series, of a broker, a topic or a group.

    The curve has a column for each minute, with the highest value of the minute; its scale begins at 0 and ends at the
    highest value of the hour. `·` is an unknown value. With --json there is a value for every ten seconds; null is
    unknown. With --all rates and counts are sums, and lags, percents and delays the largest of all members.

    The hour is kept of the busiest topics and of the groups that are furthest behind; a note says if nothing is kept.
    """
    if topic is not None and group is not None:
        raise typer.BadParameter("not allowed together with --topic", param_hint="--group")
    request = pb.GetHistoryRequest(series=series or (), topic=topic or "", group=group or "")
    stub: Callable[[Any], Any] = AllMembersServiceStub if all_members else OverviewServiceStub
    with service_port(admin, stub) as broker:
        found = broker.GetHistory(request, timeout=CALL_TIMEOUT_S)
    name_missing(getattr(found, "members", ()))
    name = topic or group
    if name is not None and not any(not isnan(value) for each in found.series for value in each.values):
        say(f"{word(name, err=True)}: no values are kept: it is new, or others are busier or further behind", err=True)
    print_rows(_series_rows(found, as_json=as_json), HISTORY_COLUMNS, as_json=as_json, kind="series")


def overview_fields(found: pb.Overview) -> dict[str, Any]:
    """Return the fields of an overview, all but the stages."""
    return {
        "name": found.broker.name,
        "version": found.broker.version,
        "readiness": found.readiness,
        "concerns": list(found.concerns),
        "concernDetails": [each.fields() for each in concerns_of(found)],
        "at": time_text(found.at_ms),
        "startedAt": time_text(found.broker.started_at_ms),
        "sentPerSecond": round(found.sent_per_second, 1),
        "receivedPerSecond": round(found.received_per_second, 1),
        "sent": found.sent,
        "received": found.received,
        "sentToday": known(found, "sent_today"),
        "receivedToday": known(found, "received_today"),
        "sentYesterday": known(found, "sent_yesterday"),
        "receivedYesterday": known(found, "received_yesterday"),
        "ready": known(found, "ready_messages"),
        "inFlight": known(found, "in_flight_messages"),
        "lagSeconds": known_seconds(found, "lag_ms"),
        "lagIsWhole": found.lag_is_whole,
        "topics": known(found, "topics"),
        "groups": known(found, "groups"),
        "connections": known(found, "connections"),
        "producers": found.producers,
        "consumers": found.consumers,
        "diskTotal": known(found, "disk_total"),
        "diskFree": known(found, "disk_free"),
        "diskUsedPercent": _used_percent(found),
        "logSize": found.log_size,
        "oldestStoredAt": known_time(found, "oldest_stored_at_ms"),
        "timers": known(found, "timers"),
        "transactions": known(found, "transactions"),
        "liteTopics": known(found, "lite_topics"),
        "migrationPhase": found.migration_phase,
        "migrationLagBytes": known(found, "migration_lag_bytes"),
        "openJobs": found.open_jobs,
        "logCheckPercent": _log_check_percent(found),
        "logCheckedAt": known_time(found, "log_checked_at_ms"),
        "cpuSeconds": round(found.process.cpu_seconds, 1),
        "residentBytes": known(found.process, "resident_bytes"),
        "openFiles": known(found.process, "open_files"),
        "loopLateSeconds": known_rounded(found.process, "loop_late_seconds", 3),
    }


def _for_people(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Mark lag values as `at least`, if the broker does not count all groups."""
    shown = {**fields, "concerns": fields.get("concerns") or None}
    shown.pop("concernDetails", None)
    if not shown.pop("lagIsWhole", True):
        shown |= {
            name: f"at least {number_text(name, value)}" for name in LAG_FIELDS if (value := fields[name]) is not None
        }
    return shown


def _used_percent(found: pb.Overview) -> float | None:
    if not found.disk_total:
        return None
    return round(100 * (1 - found.disk_free / found.disk_total), 1)


def _log_check_percent(found: pb.Overview) -> float | None:
    ratio = known(found, "log_check_ratio")
    return None if ratio is None else round(100 * ratio, 1)


def _member_fields(member: pb.MemberOverview) -> dict[str, Any]:
    """Return the fields of a member; of one that has not answered, only the reason."""
    fields = overview_fields(member.overview) if member.HasField("overview") else {}
    return {
        **fields,
        "name": member.name,
        "state": member.state,
        "isSelf": member.is_self,
        "isReachable": member.is_reachable,
        "address": member.address,
        "adminAddress": member.admin_address or None,
        "version": member.version,
        "readiness": fields.get("readiness") or member.problem or "no answer",
    }


def _series_rows(found: pb.History, *, as_json: bool) -> Iterator[dict[str, Any]]:
    end_ms = found.at_ms[-1] if found.at_ms else 0
    for each in found.series:
        values = [None if isnan(value) else value for value in each.values]
        if as_json:
            yield {"name": each.name, "unit": each.unit, "atMs": list(found.at_ms), "values": values}
            continue
        there = [value for value in values if value is not None]
        yield {
            "name": each.name,
            "unit": each.unit,
            "last": _short(values[-1:]),
            "least": _short([min(there)] if there else []),
            "most": _short([max(there)] if there else []),
            "lastHour": sparkline(
                cells(found.at_ms, each.values, end_ms=end_ms, span_ms=HOUR_MS, width=SPARKLINE_WIDTH),
                plain=not speaks_utf8(),
            ),
        }


def _short(value: Sequence[float | None]) -> str | None:
    """Format the value of a list with three digits."""
    if not value or value[0] is None:
        return None
    return f"{value[0]:,.0f}" if abs(value[0]) >= 100 else f"{value[0]:.3g}"
