"""`quarry security` and `quarry user bootstrap` make keys and the first user before a broker runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.offline.arguments import Json, Store
from quarry_mq.cli.offline.record_text import json_line
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.protocol.clock import SystemClock

commands: Final = typer.Typer(no_args_is_help=True)

SecretFile = Annotated[
    Path | None,
    typer.Option(
        "--secret-file",
        metavar="FILE",
        help="Read the secret from this file. Default: generate a secret and show it.",
        show_default=False,
    ),
]


@commands.command(name="new-key")
def make_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Must not exist.", show_default=False)],
    *,
    as_json: Json = False,
) -> None:
    """Create a file with a new key for `security.key_file`, which only its owner may read.

    Without the key no secret of the store can be read: keep a copy of it, and not where the store's backups are.
    """
    from quarry_mq.cli.key_file import make_key_file  # not at the top, as in `bootstrap`

    try:
        make_key_file(file)
    except OSError as error:
        end(Exit.COULD_NOT_RUN, f"{file}: {error.strerror}")
    say(json_line({"file": str(file)}) if as_json else str(file))


def bootstrap(
    store: Store,
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    *,
    key_file: Annotated[
        Path, typer.Option("--key-file", metavar="FILE", help="The broker's key file: security.key_file.")
    ],
    secret_file: SecretFile = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Proceed even if there is a super user, or a user of this name, who then gets a new secret."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the first super user of a stopped store, which may be new.

    The secret is shown once. Exit status 2: it could not run.
    """
    # Imported here: the other commands of `quarry user` need no store.
    from quarry_mq.cli.offline.opened_store import logs_aside, reporting_errors
    from quarry_mq.store.fs import PosixDisk
    from quarry_mq.store.security.sealer import Sealer, read_keys
    from quarry_mq.store.tools.users import make_first_administrator, users_of

    given = secret_text(secret_file)
    with (
        reporting_errors(store),
        logs_aside(logging.ERROR),
        users_of(PosixDisk(), store, Sealer(read_keys(key_file)), SystemClock()) as users,
    ):
        secret = make_first_administrator(users, name, given, SystemClock().wall_ms(), force=force)
    fields = {"name": name, "kind": "super", "secret": secret.text if given is None else None}
    if as_json:
        say(json_line(fields))
        return
    say(f"super user {name}")
    if given is None:
        say(f"secret     {secret.text}")


def secret_text(file: Path | None) -> str | None:
    """Return the secret in a file without its line end. A file that cannot be read ends the command."""
    try:
        return None if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        end(Exit.COULD_NOT_RUN, f"{file}: {getattr(error, 'strerror', None) or 'is no text'}")
