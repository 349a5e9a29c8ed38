"""TLS for listeners: files to what OpenSSL wants."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from server.front.contract import TlsFiles


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """For a server that speaks HTTP/2 only: TLS 1.2 or newer, ALPN `h2`. Raises ValueError that names the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["h2"])
    _load(files.certificate, lambda: context.load_cert_chain(files.certificate, files.key), files.key)
    if files.client_ca is not None:
        _load(files.client_ca, lambda: context.load_verify_locations(files.client_ca))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load(path: Path, load: Callable[[], None], *others: Path) -> None:
    try:
        load()
    except (OSError, ssl.SSLError) as cause:
        named = " or ".join(str(each) for each in (path, *others))
        raise ValueError(f"TLS: {named} cannot be used: {cause.strerror or cause}") from cause
