"""Certificates for tests: made anew each time by an authority that nobody knows."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from quarry_mq.server.front import LiveTls, TlsFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """What a server shows, and how clients know it. `client` is the certificate and key that clients show."""

    files: TlsFiles
    authority: bytes
    authority_path: Path
    client: tuple[bytes, bytes] | None = None

    def settings(self, tls: str = "required") -> dict[str, object]:
        """Of a broker that shows the certificate on its messaging port, or where its other settings say."""
        return {
            "network.tls": tls,
            "network.tls_certificate": self.files.certificate,
            "network.tls_key": self.files.key,
        }

    def live(self) -> LiveTls:
        """For a listener."""
        return LiveTls(self.files)


def make_tls(directory: Path, *, clients_too: bool = False) -> Tls:
    """A certificate for 127.0.0.1 by a new authority; with `clients_too` clients have to show one as well."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    certificate, key, root = directory / "server.pem", directory / "server.key", directory / "authority.pem"
    server.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
    authority.cert_pem.write_to_path(root)
    client = authority.issue_cert("client@example.com")
    return Tls(
        TlsFiles(certificate, key, root if clients_too else None),
        authority.cert_pem.bytes(),
        root,
        (client.cert_chain_pems[0].bytes(), client.private_key_pem.bytes()) if clients_too else None,
    )


def make_client_certificate(common_name: str, organization: str) -> bytes:
    """A client's certificate of a new authority, in DER."""
    issued = trustme.CA().issue_cert(common_name=common_name, organization_name=organization)
    return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())
