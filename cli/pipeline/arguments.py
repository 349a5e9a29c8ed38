"""Defines options of several commands that select messages or call a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.contexts import chosen

Topics = Annotated[
    list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only of this topic; repeatable.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="TAG", help="Only with this tag; repeatable.")]
Where = Annotated[str | None, typer.Option("--where", metavar="SQL", help="Filter in Spark SQL over the columns.")]
Timeout = Annotated[
    int,
    typer.Option("--timeout", metavar="SECONDS", min=1, help="How long to wait for a broker that does not answer."),
]
Tls = Annotated[bool, typer.Option("--tls", help="Use TLS to connect to the broker.")]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Trust these certificate authorities (PEM) instead of gRPC's own."),
]


def broker_options(endpoint: str, timeout_s: int, tls: bool, tls_ca: Path | None) -> dict[str, str]:
    """Return the options of the format `quarry` for a live broker, with the files and user of the chosen context."""
    context = chosen() or Context()
    options = {"endpoints": endpoint, "timeoutMs": str(timeout_s * 1000), "tls": str(tls or context.tls)}
    for name, value in (
        ("tlsCa", tls_ca or context.tls_ca),
        ("tlsCertificate", context.tls_certificate),
        ("tlsKey", context.tls_key),
        ("user", context.user),
        ("secretFile", context.secret_file),
    ):
        if value is not None:
            options[name] = str(value)
    return options
