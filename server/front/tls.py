"""TLS for listeners: loading of PEM files for OpenSSL, and their replacement while listeners run."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Literal, TypeVar

_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files for listeners that speak TLS.

    With `client_ca` clients have to show a certificate signed by it: all of them, or with `optional` those that have
    one. `protocol` is what ALPN must agree on. `make` makes certificate and key where they are missing, and raises
    ValueError that names the file; such files are not touched before they are needed.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_certificate: Literal["required", "optional"] = "required"
    protocol: Literal["h2", "http/1.1"] = "h2"
    make: Callable[[], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """The certificates of a listener as read from its files: as a context, and as PEM."""

    context: ssl.SSLContext
    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None


class LiveTls:
    """The certificates that the listeners of one kind show to new connections. A connection keeps those it began with.

    `now` is replaced as a whole, so any thread may read it at any time.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Load the files, unless they are made when they are needed. Raises ValueError that names the file."""
        self.files = files
        self._now = None if files.make is not None else self.read()
        self._loading = Lock()

    @property
    def is_loaded(self) -> bool:
        """Return whether there is something to show; otherwise `now` makes and reads the files, which takes a while."""
        return self._now is not None

    @property
    def now(self) -> Shown:
        """Return what is shown. Raises ValueError that names the file, only as long as nothing is loaded."""
        return self._now or self.load()

    def show(self, shown: Shown) -> None:
        """Show other certificates to new connections."""
        self._now = shown

    def load(self) -> Shown:
        """Make the files if that is to be done, and read them. Raises as `now`; may be called on any thread."""
        with self._loading:
            if self._now is None:
                if self.files.make is not None:
                    self.files.make()
                self._now = self.read()
            return self._now

    def read(self) -> Shown:
        """Return the present content of the files without showing it yet. Raises ValueError that names the file."""
        files = self.files
        context = _context(files)
        return Shown(
            context,
            _load(files.certificate.read_bytes, files.certificate),
            _load(files.key.read_bytes, files.key),
            None if files.client_ca is None else _load(files.client_ca.read_bytes, files.client_ca),
        )


def _context(files: TlsFiles) -> ssl.SSLContext:
    """Return a new context. In a context in use, certificates can be replaced, but no authority can be removed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([files.protocol])

    def no_passphrase() -> str:
        raise ValueError(f"TLS: {files.key} cannot be used: it has a passphrase")

    _load(lambda: context.load_cert_chain(files.certificate, files.key, no_passphrase), files.certificate, files.key)
    if files.client_ca is not None:
        _load(lambda: context.load_verify_locations(files.client_ca), files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_certificate == "required" else ssl.CERT_OPTIONAL
    return context


def _load(load: Callable[[], _Loaded], *paths: Path) -> _Loaded:
    try:
        return load()
    except (OSError, ssl.SSLError) as cause:
        named = " or ".join(map(str, paths))
        raise ValueError(f"TLS: {named} cannot be used: {cause.strerror or cause}") from cause
