"""Commands over a store directory that no broker runs on. `recover`, `migrate`, `restore` and `user bootstrap`
change it.
"""

from __future__ import annotations

import typer

from cli.offline import security
from cli.offline.decode import decode
from cli.offline.export_metadata import export_metadata
from cli.offline.migrate import migrate
from cli.offline.queues import units
from cli.offline.recover import recover
from cli.offline.restore import restore
from cli.offline.verify import verify


def register(app: typer.Typer) -> None:
    """Add the commands to `quarry`."""
    for command in (decode, units, verify, recover, migrate, export_metadata, restore):
        app.command()(command)
    app.add_typer(security.commands)


__all__ = ["register"]
