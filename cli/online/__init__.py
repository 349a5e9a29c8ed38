"""Commands against a live broker: administration through its admin port, messages through its messaging port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import typer

from cli.online import (
    clients,
    cluster,
    consumer,
    dead_letters,
    groups,
    index,
    jobs,
    lite,
    message,
    message_send,
    migration,
    rules,
    settings,
    storage,
    subscriptions,
    topic_details,
    topics,
    tops,
    users,
    verification,
)
from cli.online.backup import backup
from cli.online.bench import bench
from cli.online.broker import broker
from cli.online.browse import browse
from cli.online.call import call
from cli.online.console import console
from cli.online.expire import expire
from cli.online.lag import lag
from cli.online.messages import consume, tail
from cli.online.overview import history, overview
from cli.online.ping import ping
from cli.online.produce import produce
from cli.online.query import query
from cli.online.queues import queues
from cli.online.stats import stats
from cli.online.top import top

MORE_COMMANDS: Final[Sequence[tuple[typer.Typer, Sequence[Callable[..., None]]]]] = (
    (topics.commands, (subscriptions.readers, topic_details.route, topic_details.status, storage.spans)),
    (
        groups.commands,
        (subscriptions.consumers, subscriptions.subscriptions, subscriptions.times, subscriptions.forget),
    ),
    (clients.commands, (consumer.show, consumer.stack, consumer.verify_message)),
    (message.commands, (message_send.send,)),
)
"""Those of a family that are in modules of their own."""


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    for family, more in MORE_COMMANDS:
        for each in more:
            family.command()(each)
    topics.commands.command(name="top")(tops.top_topics)
    groups.commands.command(name="top")(tops.top_groups)
    app.add_typer(topics.commands)
    app.add_typer(groups.commands)
    app.add_typer(dead_letters.commands)
    app.add_typer(dead_letters.commands, name="dlq", help="The same as dead-letters.")
    app.add_typer(lite.commands)
    app.add_typer(clients.commands)
    app.add_typer(index.commands)
    app.add_typer(message.commands)
    app.add_typer(jobs.commands)
    app.add_typer(migration.commands)
    app.add_typer(verification.commands)
    app.add_typer(settings.commands)
    app.add_typer(cluster.commands)
    app.add_typer(users.commands)
    app.add_typer(rules.commands)
    for command in (
        produce,
        consume,
        tail,
        browse,
        storage.storage,
        storage.pending,
        backup,
        expire,
        query,
        queues,
        lag,
        overview,
        history,
        stats,
        top,
        broker,
        call,
        ping,
        bench,
        console,
    ):
        app.command()(command)


__all__ = ["register"]
