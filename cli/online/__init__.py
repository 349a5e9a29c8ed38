"""Commands against a live broker: administration through its admin port, messages through its messaging port."""

from __future__ import annotations

import typer

from cli.online import (
    clients,
    cluster,
    dead_letters,
    groups,
    index,
    lite,
    migration,
    rules,
    settings,
    topics,
    users,
    verification,
)
from cli.online.backup import backup
from cli.online.expire import expire
from cli.online.lag import lag
from cli.online.messages import consume, produce, tail
from cli.online.query import query
from cli.online.queues import queues
from cli.online.stats import stats


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    app.add_typer(topics.commands)
    app.add_typer(groups.commands)
    app.add_typer(dead_letters.commands)
    app.add_typer(lite.commands)
    app.add_typer(clients.commands)
    app.add_typer(index.commands)
    app.add_typer(migration.commands)
    app.add_typer(verification.commands)
    app.add_typer(settings.commands)
    app.add_typer(cluster.commands)
    app.add_typer(users.commands)
    app.add_typer(rules.commands)
    for command in (produce, consume, tail, backup, expire, query, queues, lag, stats):
        app.command()(command)


__all__ = ["register"]
