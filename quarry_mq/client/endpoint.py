"""The address of a port of a broker, and how to connect to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a messaging or admin port, with the files for TLS and the user who signs the calls."""

    address: str
    """The address as `host:port`, with an IPv6 host in brackets."""
    tls: bool = field(default=False, kw_only=True)
    ca: Path | None = field(default=None, kw_only=True)
    """Certificate authorities to trust (PEM). None: those that gRPC, or for asyncio the machine, trusts."""
    certificate: Path | None = field(default=None, kw_only=True)
    """Certificate of the client (PEM), for brokers that ask for one. `key` is its private key."""
    key: Path | None = field(default=None, kw_only=True)
    user: str | None = field(default=None, kw_only=True)
    """Name of the user that calls are signed as. None: calls are not signed."""
    secret: str | None = field(default=None, repr=False, kw_only=True)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """Return the port. Raises ValueError if the address has none."""
        return int(self.address.rpartition(":")[2])

    def check_tls_files(self) -> None:
        """Raise ValueError with the name of a file that cannot be used: gRPC reports it only in its own log."""
        import ssl  # not at the top: few clients come here

        checked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        path = self.ca
        try:
            if self.ca is not None:
                checked.load_verify_locations(self.ca)
            if self.certificate is not None and self.key is not None:
                path = self.certificate
                checked.load_cert_chain(self.certificate, self.key)
        except OSError as cause:  # ssl.SSLError is one
            raise ValueError(f"{path}: cannot be used for TLS: {cause.strerror or cause}") from cause
