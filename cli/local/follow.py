"""`quarry follow` fills a store with the messages of a live RocketMQ master, and keeps up with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated, Final

import typer

from quarry_mq.cli.following.following import AWAY, CutOverFailed, Following, Lag
from quarry_mq.cli.following.master import REFUSED_UNTIL, Master
from quarry_mq.cli.offline.arguments import Json
from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.offline.security import secret_text
from quarry_mq.cli.terminal.exit import Exit, asked_to_end, end
from quarry_mq.cli.terminal.progress import shown_progress
from quarry_mq.cli.terminal.text import say
from quarry_mq.client.remoting import RemotingClient
from quarry_mq.protocol.clock import Progress, ReportProgress, SystemClock
from quarry_mq.server.addresses import Address
from quarry_mq.store.follower import PointsOnRequest
from quarry_mq.store.follower import follow as follow_log
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.layout.paths import StorePaths
from quarry_mq.store.opening.open_store import recover_store
from quarry_mq.store.settings import StoreSettings

NOT_IN_LOG: Final = (
    "the broker does not note messages in flight in its log (popConsumerKVServiceEnable): before a cut-over "
    "stop consumers that receive by gRPC or pop, and wait for their invisible times"
)


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
    as_json: Json = False,
) -> None:
    """Follow a live RocketMQ master: take over its log as it grows, and its topics, groups and positions.

    The master serves on and notices one more slave. Ctrl-C or SIGTERM ends the command; the next run goes on where the
    last one ended. While the master is away, the command tries to reach it every 2 s. Afterwards
    `quarry serve --store DIR` serves all that was there. Only one process may use the folder at a time.
    """
    try:
        address = Address.parse(broker)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="HOST:PORT") from error
    connect = partial(_connected, address, user, secret_text(secret_file) or "")
    refused_s = None
    with reporting_errors(store), logs_aside(logging.WARNING), shown_progress() as report, asked_to_end() as stop:
        try:
            following = _opened(connect, store, report, stop)
        except AWAY as error:
            end(Exit.COULD_NOT_RUN, f"{broker}: {error}")
        try:
            if cut_over:
                refused_s = following.cut_over()
            elif until_caught_up:
                following.catch_up()
            else:
                following.run()
        except CutOverFailed as error:
            end(Exit.COULD_NOT_RUN, f"{broker}: {error}")
        finally:
            following.close()
        if refused_s is not None:
            # the store is closed: a broker that waits for this file opens it at once
            PosixCopyingDisk().replace_atomically(StorePaths(store).cut_over, b"%d\n" % following.lag.dispatched_up_to)
    if cut_over and refused_s is None:
        end(Exit.COULD_NOT_RUN, "ended before the cut-over was complete: the broker takes messages as before")
    lag = following.lag
    if as_json:
        say(json_line({"logBegin": following.log_begin, "logEnd": lag.dispatched_up_to, "behind": lag.size}))
        return
    say(f"the store has the broker's log up to {lag.dispatched_up_to}, {lag.size} bytes behind")
    if refused_s is not None:
        _say_next(broker, store, refused_s)


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


def _opened(connect: Callable[[], Master], root: Path, report: ReportProgress, stop: Event) -> Following:
    """Open the store to follow a master. Nothing is made if the master cannot be followed."""
    disk, clock = PosixCopyingDisk(), SystemClock()
    with closing(connect()) as master:
        settings = StoreSettings(root=root, segment_size=master.segment_size)
        begin, kind = master.log_range().minimum, master.kind
        if not master.has_notes_in_log:
            say(NOT_IN_LOG, err=True)
    recovered = recover_store(settings, disk=disk, clock=clock, report=report, followed=kind)
    # of a cut-over after which RocketMQ takes messages again; a store that a broker serves is refused before
    disk.remove(StorePaths(root).cut_over)
    store = follow_log(recovered, begin=begin, points=PointsOnRequest(disk, root, clock))
    return Following(
        store, connect, paths=StorePaths(root), disk=disk, clock=clock, show=partial(_show, report), stop=stop
    )


def _show(report: ReportProgress, lag: Lag) -> None:
    done = lag.dispatched_up_to
    words = f"{lag.size:,} bytes behind"
    if lag.problem:
        words = f"trying again ({lag.problem}), {words}"
    report(Progress("following", done, max(done, lag.master_end), words))
