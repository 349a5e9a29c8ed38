"""Defines options that several commands for a live broker share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from quarry_mq.cli.contexts import admin_of_context, chosen
from quarry_mq.cli.online.connection.addresses import endpoint_of_broker

ADMIN_DEFAULT: Final = "127.0.0.1:8082"
ENDPOINT_DEFAULT: Final = "127.0.0.1:8081"

Admin = Annotated[
    str,
    typer.Option("--admin", metavar="HOST:PORT", help="Admin address of the broker.", callback=admin_of_context),
]
StoreOrNone = Annotated[
    Path | None,
    typer.Argument(metavar="[STORE]", help="Store directory, unless --admin is given.", show_default=False),
]
AdminOrNone = Annotated[
    str | None,
    typer.Option("--admin", metavar="HOST:PORT", help="Admin address of a live broker to ask.", show_default=False),
]
"""The `--admin` option of commands that read a stopped store, or ask its broker."""
Endpoint = Annotated[
    str,
    typer.Option(
        "--endpoint", metavar="HOST:PORT", help="Messaging address of the broker.", callback=endpoint_of_broker
    ),
]
AdminOfEndpoint = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="HOST:PORT",
        help="Admin address of the broker, which is asked for its messaging address: in place of --endpoint.",
        show_default=False,
    ),
]
"""The `--admin` option of commands that use the messaging port alone: one address does for all commands."""
Json = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted, and its content.")]
Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]
Prefix = Annotated[
    str, typer.Option("--prefix", metavar="PREFIX", help="Only names that begin with this.", show_default=False)
]
Body = Annotated[str, typer.Argument(metavar="[BODY]", help="The text to send; - reads standard input.")]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Tag of the message.", show_default=False)]
Keys = Annotated[list[str] | None, typer.Option("--key", metavar="KEY", help="Key of the message. Repeatable.")]
Properties = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Property of the message. Repeatable.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="NAME=VALUE", help="Attribute; an empty value removes it. Repeatable."),
]


def with_options(attributes: dict[str, str], options: Mapping[str, tuple[str, object]]) -> dict[str, str]:
    """Add the attributes that separate options set: `options` has the option, and its value or None, by attribute.

    Raises typer.BadParameter with the option, if an attribute is set both ways.
    """
    for attribute, (option, value) in options.items():
        if value is None:
            continue
        if attribute in attributes:
            raise typer.BadParameter(f"not allowed together with the attribute {attribute}", param_hint=option)
        attributes[attribute] = str(value)
    return attributes


def broker_of(admin: str | None, *, is_store_named: bool) -> str | None:
    """Return the broker to ask:

    `admin`, or without a store the broker of the chosen context; None: the store is read.
    """
    if admin is not None or is_store_named:
        return admin
    context = chosen()
    return None if context is None else context.admin


def pairs(texts: list[str] | None, option: str) -> dict[str, str]:
    """Parse `NAME=VALUE` texts to a mapping. Raises typer.BadParameter with the option."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name] = value
    return found
