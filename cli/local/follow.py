"""`quarry follow` fills a store with the messages of a live RocketMQ master, and keeps up with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.following.following import FollowFailed
from quarry_mq.cli.following.master import REFUSED_UNTIL, Master
from quarry_mq.cli.following.run import Run
from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.offline.security import secret_text
from quarry_mq.cli.terminal.exit import Exit, asked_to_end, end
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say
from quarry_mq.client.remoting import RemotingClient
from quarry_mq.server.addresses import Address
from quarry_mq.server.observability.logs import configure_logs


def follow(
    broker: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="The broker's address for clients, such as 10.0.0.1:10911.")
    ],
    store: Annotated[
        Path,
        typer.Option("--store", metavar="DIR", help="Folder of the store: empty, or one that has followed before."),
    ],
    *,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End as soon as the store has caught up with the broker.")
    ] = False,
    cut_over: Annotated[
        bool, typer.Option("--cut-over", help="Catch up, let the broker refuse messages, take over the rest, and end.")
    ] = False,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="User who signs the calls, if the broker has users.")
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option("--secret-file", metavar="FILE", help="File with the secret of the user.")
    ] = None,
    rest_after_cut_over: Annotated[
        bool,
        typer.Option(
            "--rest-after-cut-over",
            help="Stay after a cut-over, and do nothing: for a container beside `quarry serve --after-cut-over`.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Follow a live RocketMQ master: take over its log as it grows, and its topics, groups and positions.

    The master serves on and notices one more slave. Ctrl-C or SIGTERM ends the command; the next run goes on where the
    last one ended. While the master is away, the command tries to reach it every 2 s. Afterwards
    `quarry serve --store DIR` serves all that was there. Only one process may use the folder at a time: with --cut-over
    beside a `quarry follow` that runs, the running one cuts over, and the command waits for it.
    """
    try:
        address = Address.parse(broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="HOST:PORT") from error
    if rest_after_cut_over and (cut_over or until_caught_up):
        raise typer.BadParameter("it follows until it is ordered to cut over", param_hint="--rest-after-cut-over")
    connect = partial(_connected, address, user, secret_text(secret_file) or "")
    with (
        reporting_errors(store),
        _logged() if rest_after_cut_over else logs_aside(logging.WARNING),
        shown_progress() as show,
        asked_to_end() as stop,
    ):
        run = Run(broker, store, connect, show=show, warn=partial(say, err=True), stop=stop)
        try:
            if rest_after_cut_over:
                run.rest_after_cut_over()
                return
            if cut_over:
                report = run.order_cut_over() if run.has_follower else run.cut_over()
            else:
                report = run.catch_up() if until_caught_up else run.follow()
        except FollowFailed as error:
            end(Exit.COULD_NOT_RUN, f"{broker}: {error}")
    if as_json:
        say(json_line({"logBegin": report.log_begin, "logEnd": report.log_end, "behind": report.lag_size}))
        return
    say(f"the store has the broker's log up to {report.log_end}, {report.lag_size} bytes behind")
    if report.refused_s is not None:
        _say_next(broker, store, report.refused_s)


@contextmanager
def _logged() -> Iterator[None]:
    """Log as a broker does: who reads the log of a container sees how far the command is."""
    configure_logs("auto", "info")
    yield


def _say_next(broker: str, store: Path, refused_s: float) -> None:
    say(f"the broker began to refuse messages {refused_s:.1f} s before")
    say(f"serve the store, and lead the clients to it: quarry serve --store {store}")
    say(f"to go back before that: mqadmin updateBrokerConfig -b {broker} -k {REFUSED_UNTIL} -v 0")


def _connected(address: Address, user: str | None, secret: str) -> Master:
    client = RemotingClient(address.host, address.port, user=user, secret=secret)
    try:
        return Master(client)
    except BaseException:
        client.close()
        raise
