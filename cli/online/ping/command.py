"""`quarry ping` measures how long a broker takes to answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from enum import StrEnum
from typing import Annotated, Final

import typer

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.connection.administration import asked_names
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, ENDPOINT_DEFAULT, Admin, Endpoint, Json
from quarry_mq.cli.online.messages.consume import terminated_as_interrupted
from quarry_mq.cli.online.ping.trips import (
    AdminTrip,
    MessageTrip,
    MessagingTrip,
    Times,
    Way,
    milliseconds,
    paced,
    stats_of,
)
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import json_line, print_rows
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.clock import SystemClock

INTERRUPTED: Final = 130
COLUMNS: Final = ("call", "answered", "min", "p50", "p99", "max")
LABELS: Final = {"messaging": "messaging", "admin": "admin", "send": "sent", "roundTrip": "round trip"}


class Port(StrEnum):
    BOTH = "both"
    ADMIN = "admin"
    MESSAGING = "messaging"


def ping(
    *,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="For each try, send a test message to this topic and find it there.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        Port, typer.Option("--ports", metavar="both|admin|messaging", help="Which ports to try.")
    ] = Port.BOTH,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of tries.")] = 4,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.0, help="Time between two tries.")
    ] = 1.0,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="How long to wait for an answer.")
    ] = 5.0,
    within_ms: Annotated[
        float | None,
        typer.Option(
            "--within-ms",
            metavar="MS",
            min=0.0,
            help="Exit with status 1 if a try took longer than this.",
            show_default=False,
        ),
    ] = None,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Measure how long a broker takes to answer on its messaging port and its admin port, or to store a message.

    Exit status 1: a try failed, or took longer than --within-ms. 2: nothing was answered. No consumer group is created
    or used.
    """
    if topic is not None and port is not Port.BOTH:
        raise typer.BadParameter("a message needs both ports", param_hint="--ports")
    interrupted = False
    with _ways(topic, port, endpoint, admin, timeout_s=timeout) as ways, terminated_as_interrupted():
        tries = 0
        try:
            for number in paced(count, interval, SystemClock()):
                times = {name: time_s for way in ways for name, time_s in way.try_once().items()}
                tries = number
                _show_try(number, times, ways, as_json=as_json)
        except KeyboardInterrupt:
            interrupted = True
        slowest_ms = max(
            (time_s * 1000 for way in ways for each in way.times_s.values() for time_s in each), default=0.0
        )
        is_late = within_ms is not None and slowest_ms > within_ms
        _show_summary(tries, ways, within_ms=within_ms, is_late=is_late, as_json=as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    for way in ways:
        if not way.has_answered:
            end(Exit.COULD_NOT_RUN, way.reason or "no answer", asked_names(admin))
    has_failed = any(len(each) < tries for way in ways for each in way.times_s.values())
    raise typer.Exit(Exit.FINDING if is_late or has_failed else Exit.FINE)


@contextmanager
def _ways(topic: str | None, port: Port, endpoint: str, admin: str, *, timeout_s: float) -> Iterator[list[Way]]:
    """Give the requests that each try makes."""
    context, clock = chosen(), SystemClock()

    def timed(go: Callable[[], None]) -> Callable[[], tuple[float]]:
        def measured() -> tuple[float]:
            began_s = clock.monotonic_s()
            go()
            return (clock.monotonic_s() - began_s,)

        return measured

    with ExitStack() as stack:
        ways = []
        if port is not Port.ADMIN:
            messaging = stack.enter_context(closing(MessagingTrip(endpoint, context, timeout_s, clock)))
            if topic is not None:
                names = asked_names(admin)
                trip = stack.enter_context(
                    closing(MessageTrip(topic, messaging, admin, context, names=names, clock=clock))
                )
                both = f"{endpoint}, {admin}"
                ways.append(
                    Way(both, ("send", "roundTrip"), lambda: trip.prepare(timeout_s), lambda: trip.go(timeout_s))
                )
            else:
                ways.append(Way(endpoint, ("messaging",), messaging.prepare, timed(messaging.go)))
        if port is not Port.MESSAGING and topic is None:
            on_admin = stack.enter_context(closing(AdminTrip(admin, context, timeout_s)))
            ways.append(Way(admin, ("admin",), on_admin.prepare, timed(on_admin.go)))
        yield ways


def _show_try(number: int, times: Times, ways: list[Way], *, as_json: bool) -> None:
    if as_json:
        say(
            json_line(
                {
                    "try": number,
                    "times": {name: milliseconds(times.get(name)) for way in ways for name in way.names},
                    "failures": [way.reason for way in ways if way.reason is not None],
                }
            )
        )
        return
    cells = [
        f"{LABELS[name]} {milliseconds(times[name]):.2f} ms" for way in ways if way.reason is None for name in way.names
    ]
    say("  ".join([f"{number:>4}", *cells, *(f"failed: {way.reason}" for way in ways if way.reason is not None)]))


def _show_summary(tries: int, ways: list[Way], *, within_ms: float | None, is_late: bool, as_json: bool) -> None:
    rows = {name: stats_of(times_s) for way in ways for name, times_s in way.times_s.items()}
    if as_json:
        say(json_line({"tries": tries, "withinMs": within_ms, "isLate": is_late, "figures": rows}))
        return
    shown = [
        {
            "call": LABELS[name],
            "answered": f"{row['answered']} of {tries}",
            **{
                column: None if row[f"{column}Ms"] is None else f"{row[f'{column}Ms']:.2f} ms" for column in COLUMNS[2:]
            },
        }
        for name, row in rows.items()
    ]
    print_rows(shown, COLUMNS, as_json=False)
    if is_late:
        say(f"slower than {within_ms:g} ms")
