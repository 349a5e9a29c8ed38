"""`quarry context`: the named contexts of the contexts file. Secrets are never shown."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from quarry_mq.cli.context_file import CURRENT, ContextInvalid, all_contexts, contexts_file, read_context
from quarry_mq.cli.contexts import chosen_name
from quarry_mq.cli.online.connection.arguments import Json
from quarry_mq.cli.online.connection.probe import is_reached, who_is
from quarry_mq.cli.terminal.exit import Exit, end
from quarry_mq.cli.terminal.output import print_object, print_rows

COLUMNS: Final = ("name", "isCurrent", "user", "tls", "endpoint", "admin")
TEST_COLUMNS: Final = ("port", "address", "isFine", "seen")
FILE_MODE: Final = 0o600
_FILES: Final = ("tls_ca", "tls_certificate", "tls_key", "secret_file")

commands: Final = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the context.", show_default=False)]
NameOrNone = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="Default: the context of this run.", show_default=False)
]


@commands.command(name="list")
def list_contexts(*, as_json: Json = False) -> None:
    """List the contexts of the file, and show which one is used by default."""
    print_rows([_fields(name) for name in all_contexts()], COLUMNS, as_json=as_json, kind="contexts")


@commands.command()
def show(name: NameOrNone = None, *, as_json: Json = False) -> None:
    """Show one context, and its problem if it has one. Exit status 1 when it has one."""
    fields = _fields(_named(name))
    print_object(fields, as_json=as_json)
    raise typer.Exit(Exit.FINE if fields["problem"] is None else Exit.FINDING)


@commands.command(name="test")
def ask(name: NameOrNone = None, *, as_json: Json = False) -> None:
    """Ask the broker of a context who it is, and check whether its messaging port can be reached.

    Exit status 1: a port does not answer, or not as it should.
    """
    name = _named(name)
    try:
        context = read_context(contexts_file(), name)
    except ContextInvalid as error:
        end(Exit.COULD_NOT_RUN, str(error))
    rows: list[dict[str, object]] = []
    endpoint = context.endpoint
    if context.admin is not None:
        answer = who_is(context.admin, context)
        if answer is None:
            seen = "no answer"
        else:
            seen = answer.refusal if answer.broker is None else f"{answer.broker.name}, version {answer.broker.version}"
        is_fine = answer is not None and answer.broker is not None
        if endpoint is None and answer is not None and answer.broker is not None:
            endpoint = answer.broker.messaging_address
        rows.append({"port": "admin", "address": context.admin, "isFine": is_fine, "seen": seen})
    if endpoint is not None:
        is_fine = is_reached(endpoint, context)
        seen = "reached" if is_fine else "no answer"
        rows.append({"port": "messaging", "address": endpoint, "isFine": is_fine, "seen": seen})
    print_rows(rows, TEST_COLUMNS, as_json=as_json, kind="addresses")
    raise typer.Exit(Exit.FINE if all(row["isFine"] for row in rows) else Exit.FINDING)


@commands.command()
def add(
    name: Name,
    *,
    admin: Annotated[
        str | None, typer.Option("--admin", metavar="HOST:PORT", help="Address of the admin port.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            "--endpoint", metavar="HOST:PORT", help="Address of the messaging port. Default: the broker says it."
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS; also implied by the options for TLS files.")] = False,
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", metavar="FILE", help="Certificate authorities to trust (PEM).")
    ] = None,
    tls_certificate: Annotated[
        str | None, typer.Option("--tls-certificate", metavar="FILE", help="Client certificate (PEM).")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", metavar="FILE", help="Private key of the client certificate.")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="User who signs the calls.")] = None,
    secret_file: Annotated[
        str | None,
        typer.Option("--secret-file", metavar="FILE", help="File with the user's secret, readable only by you."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a context to the file, which is created if it is missing. The files that it names are not copied."""
    if name in all_contexts() or name == CURRENT:
        end(
            Exit.COULD_NOT_RUN,
            f"{contexts_file()}: context {name!r} already exists; `quarry context remove` removes it",
        )
    given = {
        "endpoint": endpoint,
        "admin": admin,
        "tls": tls or None,
        "tls_ca": tls_ca,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "user": user,
        "secret_file": secret_file,
    }
    lines = [f"[{_key(name)}]"]
    for key, value in given.items():
        if value is not None:
            text = str(Path(str(value)).expanduser().absolute()) if key in _FILES else value
            lines.append(f"{key} = {json.dumps(text, ensure_ascii=False)}")  # whose texts TOML reads as its own
    before = _text()
    _write(before + ("\n" if before else "") + "\n".join(lines) + "\n", name)
    print_object(_fields(name), as_json=as_json)


@commands.command()
def remove(name: Name, *, as_json: Json = False) -> None:
    """Remove a context from the file. The files that it names stay."""
    name = _named(name)
    text = _text()
    header = re.compile(
        rf"^\[\s*(?:{re.escape(_key(name))}|{re.escape(json.dumps(name))}|'{re.escape(name)}')\s*\].*?(?=^(?:#[^\n]*\n)*\s*\[|\Z)",
        re.M | re.S,
    )
    left = header.sub("", text)
    if CURRENT in (read := tomllib.loads(left)) and read[CURRENT] == name:
        left = _with_current(left, None)
    if set(_contexts_in(left)) != set(all_contexts()) - {name}:
        end(
            Exit.COULD_NOT_RUN,
            f"{contexts_file()}: {name!r} is formatted in a way that this command cannot edit: edit the file by hand",
        )
    _write(left, None)
    print_object({"removed": name}, as_json=as_json)


@commands.command()
def use(
    name: NameOrNone = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Use no context by default.")] = False,
    as_json: Json = False,
) -> None:
    """Use a context by default, where neither --context nor QUARRY_CONTEXT names one."""
    if none == (name is not None):
        raise typer.BadParameter("NAME or --none is needed")
    if name is not None:
        _named(name)
    _write(_with_current(_text(), name), None)
    print_object({"current": name}, as_json=as_json)


def _named(name: str | None) -> str:
    """Return the name of an existing context, or end the command."""
    name = name or chosen_name()
    if name is None:
        end(Exit.COULD_NOT_RUN, "no context is selected: name one")
    if name not in all_contexts():
        end(
            Exit.COULD_NOT_RUN,
            f"{contexts_file()}: no context {name!r}; there are: {', '.join(all_contexts()) or 'none'}",
        )
    return name


def _fields(name: str) -> dict[str, object]:
    given = all_contexts()[name]
    problem = None
    try:
        read_context(contexts_file(), name)
    except ContextInvalid as error:
        problem = str(error)
    has_tls = given.get("tls", any(key in given for key in _FILES[:3]))
    return {
        "name": name,
        "isCurrent": name == chosen_name(),
        "endpoint": given.get("endpoint"),
        "admin": given.get("admin"),
        "tls": has_tls is True,
        "tlsCa": given.get("tls_ca"),
        "tlsCertificate": given.get("tls_certificate"),
        "tlsKey": given.get("tls_key"),
        "user": given.get("user"),
        "secretFile": given.get("secret_file"),
        "problem": problem,
    }


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _text() -> str:
    try:
        return contexts_file().read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        end(Exit.COULD_NOT_RUN, f"{contexts_file()}: {getattr(error, 'strerror', None) or error}")


def _contexts_in(text: str) -> dict[str, Any]:
    return {name: given for name, given in tomllib.loads(text).items() if isinstance(given, dict)}


def _with_current(text: str, name: str | None) -> str:
    rest = re.sub(rf"^{CURRENT}\s*=.*\n?", "", text, count=1, flags=re.M)
    return rest if name is None else f"{CURRENT} = {json.dumps(name, ensure_ascii=False)}\n{rest}"


def _write(text: str, checked: str | None) -> None:
    """Replace the file at once, and keep its permissions; a new file is readable by its owner only.

    `checked` is the context in it that must be valid.
    """
    file = contexts_file()
    temporary: Path | None = None
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else FILE_MODE
        descriptor, path = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
        temporary = Path(path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        temporary.chmod(mode)
        if checked is not None:
            read_context(temporary, checked)
        temporary.replace(file.resolve())
        temporary = None
    except ContextInvalid as error:
        end(Exit.COULD_NOT_RUN, str(error).replace(str(temporary), str(file)))
    except OSError as error:
        end(Exit.COULD_NOT_RUN, f"{error.filename or file}: {error.strerror}")
    finally:
        if temporary is not None:
            temporary.unlink()
