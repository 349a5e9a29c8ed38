"""`quarry bench` measures a broker under load, as its clients see it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.contexts import chosen
from quarry_mq.cli.online.bench.load import Load
from quarry_mq.cli.online.bench.places import Place, Wanted, place_of
from quarry_mq.cli.online.bench.stats import Plan
from quarry_mq.cli.online.connection.administration import asked_names, endpoint_of
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, ENDPOINT_DEFAULT, Admin, Endpoint, Json
from quarry_mq.cli.online.messages.consume import terminated_as_interrupted
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import json_line
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say
from quarry_mq.client.endpoint import Endpoint as BrokerEndpoint
from quarry_mq.client.errors import CallRefused
from quarry_mq.protocol.clock import SystemClock

DURATION_S: Final = 10.0
INTERRUPTED: Final = 130
CLIENTS_MAX: Final = 400
"""Producers or consumers, at most: `select`, which waits for their connections, takes 1,024 in all."""

COLUMNS: Final = ("messages", "perSecond", "mbPerSecond", "p50Ms", "p99Ms", "p999Ms", "maxMs")
HEADINGS: Final = ("messages", "messages/s", "MB/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms")


Topic = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Topic to use instead of a temporary one.", show_default=False),
]
Size = Annotated[int, typer.Option("--size", metavar="BYTES", min=1, help="Size of a body.")]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="N",
        min=0.001,
        help="Messages per second of all producers together. Default: as many as possible.",
        show_default=False,
    ),
]
Producers = Annotated[
    int, typer.Option("--producers", metavar="N", min=1, max=CLIENTS_MAX, help="Number of producers.")
]
Consumers = Annotated[
    int, typer.Option("--consumers", metavar="N", min=0, max=CLIENTS_MAX, help="Number of consumers; 0: none.")
]
InFlight = Annotated[
    int, typer.Option("--in-flight", metavar="N", min=1, help="Maximum number of open sends per producer.")
]
Duration = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", min=0.1, help="How long to send. Default: 10.", show_default=False),
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count",
        "-n",
        metavar="N",
        min=1,
        help="Number of messages to send. Default: as many as --duration allows.",
        show_default=False,
    ),
]
Queues = Annotated[
    int | None,
    typer.Option(
        "--queues", metavar="N", min=1, help="Queues of the topic. Default: the broker's default.", show_default=False
    ),
]


def bench(
    *,
    topic: Topic = None,
    size: Size = 1024,
    rate: Rate = None,
    producers: Producers = 4,
    consumers: Consumers = 4,
    in_flight: InFlight = 16,
    duration: Duration = None,
    count: Count = None,
    queues: Queues = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write into an existing topic without asking.")] = False,
    endpoint: Endpoint = ENDPOINT_DEFAULT,
    admin: Admin = ADMIN_DEFAULT,
    as_json: Json = False,
) -> None:
    """Load a broker like real clients do, and show the results: messages, bytes, latencies and errors.

    The command creates a topic and a group, and deletes them at the end. Exit status 1: some calls failed, or messages
    did not come.
    """
    if duration is not None and count is not None:
        raise typer.BadParameter("not allowed together with --duration", param_hint="--count")
    run = f"quarry-bench-{uuid.uuid4().hex[:12]}"
    wanted = Wanted(run, topic, queues, has_consumers=consumers > 0, may_write=yes)
    broker = _broker_at(endpoint)
    with terminated_as_interrupted(), place_of(admin, wanted) as place:
        plan = Plan(
            topic=place.topic,
            size=size,
            rate=rate,
            producers=producers,
            consumers=consumers,
            in_flight=in_flight,
            duration_s=DURATION_S if duration is None and count is None else duration,
            count=count,
        )
        load = _loaded(plan, broker, place, admin)
    fields = {**load.stats.fields(), "queues": place.queues, "isInterrupted": load.is_interrupted}
    if as_json:
        say(json_line(fields))
    else:
        _show(fields, place)
    if load.is_interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(Exit.FINDING if load.stats.errors or load.stats.missing else Exit.FINE)


def _broker_at(address: str) -> BrokerEndpoint:
    endpoint = endpoint_of(address, chosen())
    try:
        int(endpoint.port)
    except ValueError as error:
        end(Exit.COULD_NOT_RUN, f"{address}: {error}")
    return endpoint


def _loaded(plan: Plan, broker: BrokerEndpoint, place: Place, admin: str) -> Load:
    """Run the load and return it when it is over. Ends the command if the load cannot begin."""
    with shown_progress() as report:
        load = Load(plan, broker, run=place.group, group=place.group, clock=SystemClock(), report=report)
        try:
            load.run()
        except CallRefused as error:
            end(Exit.COULD_NOT_RUN, str(error), asked_names(admin))
        except OSError as error:
            end(Exit.COULD_NOT_RUN, f"{broker.address}: no answer from a broker ({str(error) or 'in time'})")
    return load


def _show(fields: Mapping[str, Any], place: Place) -> None:
    pace = "as fast as possible" if fields["rate"] is None else f"{fields['rate']:,g} per second"
    who = f"{fields['producers']} producers with {fields['inFlight']} in flight, {fields['consumers']} consumers"
    errors = ", ".join(f"{count:,} {code}" for code, count in fields["errors"].items())
    for name, text in (
        ("topic", f"{place.topic}, {place.queues} queues" + (", removed" if place.is_temporary else "")),
        ("load", f"{who}, {fields['size']:,} bytes, {pace}"),
        ("client", f"{fields['clientCpu']:.2f} of a core in {fields['seconds']:.1f} s"),
        ("errors", errors or "none"),
    ):
        say(f"{name:<10}{text}")
    if fields["missing"]:
        say(f"{'missing':<10}{fields['missing']:,} messages were sent and not received")
    if fields["again"]:
        say(f"{'again':<10}{fields['again']:,} deliveries of messages that were already received")
    say(" " * 10 + "".join(f"{heading:>12}" for heading in HEADINGS))
    for side in ("sent", "received"):
        if fields[side] is not None:
            say(f"{side:<10}" + "".join(f"{_cell(fields[side][column]):>12}" for column in COLUMNS))


def _cell(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
