"""`quarry doctor`: what is wrong with a broker, its store and its machine, and what to do about it.

Each module looks at one thing and says what it has seen as `Finding`s; nothing is changed.
"""

from __future__ import annotations

import typer

from cli.doctor.command import doctor


def register(app: typer.Typer) -> None:
    """Add the command to `quarry`."""
    app.command()(doctor)
