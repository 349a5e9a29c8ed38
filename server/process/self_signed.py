"""The self-signed certificate that messaging ports present when the settings name none.

The key is made once, and no other key replaces it: its first complete file gets the name `key.pem`, whoever else makes
one at the same time. The certificate is made from the key, so it can be made again at any time: when it is missing,
does not belong to the key, is not valid yet, or ends soon. So brokers of one machine may share the folder.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import Address
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.fs import PosixCopyingDisk

if TYPE_CHECKING:  # loaded when a client speaks TLS
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, Name

CERTIFICATE_NAME: Final = "certificate.pem"
KEY_NAME: Final = "key.pem"
COMMON_NAME: Final = "Quarry"

VALID_FOR: Final = timedelta(days=3_650)
RENEW_BEFORE: Final = timedelta(days=30)
CLOCKS_DIFFER: Final = timedelta(days=1)
"""Time by which the clocks of clients may be behind."""

NAME_SIZE_MAX: Final = 253


class SelfSigned:
    """The files of the self-signed certificate. Nothing is loaded or touched before `make`."""

    def __init__(self, directory: Path, hosts: list[str], clock: Clock) -> None:
        """`hosts` are names and addresses, besides this machine's, at which clients reach the broker."""
        self.certificate = directory / CERTIFICATE_NAME
        self.key = directory / KEY_NAME
        self._directory = directory
        self._hosts = hosts
        self._clock = clock
        self._disk = PosixCopyingDisk()

    @classmethod
    def of(cls, settings: BrokerSettings, clock: Clock) -> Self:
        network = settings.network
        addresses = map(Address.parse, filter(None, (network.listen, network.advertise, network.tls_advertise)))
        hosts = [each.host for each in addresses if not each.is_unspecified]
        return cls(settings.tls_directory, hosts, clock)

    def make(self) -> None:
        """Make the key if there is none, and the certificate if there is none that is good for it and for the time.

        Raises ValueError that names the file.
        """
        with self._naming(self._directory):
            self._disk.make_directories(self._directory)
        with self._naming(self.key):
            if not self._disk.exists(self.key):
                self._make_key()
            key = _key_of(self._disk.read(self.key))
        with self._naming(self.certificate):
            if not self._disk.exists(self.certificate) or self._is_to_be_made(key):
                self._replace(self.certificate, _certificate_for(key, self._hosts, self._now()))

    def _make_key(self) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = ec.generate_private_key(ec.SECP256R1())
        unfinished = self._unfinished(self.key)
        self._disk.replace_atomically(unfinished, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        try:
            with suppress(FileExistsError):  # another broker was faster: its key is the one
                self._disk.link_file(unfinished, self.key)
        finally:
            self._disk.remove(unfinished)  # syncs the folder

    def _is_to_be_made(self, key: EllipticCurvePrivateKey) -> bool:
        """Return whether the certificate has to be made again. One that was put there by somebody else stays."""
        from cryptography import x509

        try:
            found = x509.load_pem_x509_certificate(self._disk.read(self.certificate))
        except (ValueError, x509.InvalidVersion):
            return True
        if not found.issuer == found.subject == _name():
            return False
        is_of_key = found.public_key() == key.public_key()
        return not is_of_key or not found.not_valid_before_utc <= self._now() < found.not_valid_after_utc - RENEW_BEFORE

    def _replace(self, path: Path, data: bytes) -> None:
        unfinished = self._unfinished(path)
        self._disk.replace_atomically(unfinished, data)
        self._disk.move(unfinished, path)

    def _unfinished(self, path: Path) -> Path:
        """Return a name that no other broker uses at the same time."""
        return path.with_name(f"{path.name}.{secrets.token_hex(8)}")

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)

    @contextmanager
    def _naming(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as cause:
            raise ValueError(f"TLS: {path} cannot be made or read: {cause.strerror or cause}") from cause
        except (ValueError, TypeError) as cause:
            raise ValueError(f"TLS: {path} cannot be used: {cause}; remove it, and another one is made") from cause


def _key_of(pem: bytes) -> EllipticCurvePrivateKey:
    """Return the key in a file. Raises ValueError; TypeError for one with a passphrase."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except UnsupportedAlgorithm as cause:
        raise ValueError(str(cause)) from cause
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("not a key on an elliptic curve")
    return key


def _name() -> Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])


def _certificate_for(key: EllipticCurvePrivateKey, hosts: list[str], now: datetime) -> bytes:
    """Return a new certificate in PEM, for this machine's names and those of `hosts`.

    It is not one of an authority, since some clients (rustls) refuse such a certificate from a server; and it names no
    use of the key, since OpenSSL takes a certificate for self-signed only if it may sign or names none.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID

    made: Certificate = (
        x509.CertificateBuilder()
        .subject_name(_name())
        .issuer_name(_name())
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + VALID_FOR)
        .add_extension(x509.SubjectAlternativeName(_names(hosts)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def _names(hosts: list[str]) -> list[GeneralName]:
    """Return the names for a certificate. Host names that none can contain are left out."""
    from cryptography import x509

    names: list[GeneralName] = []
    for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts]):
        bare = host.strip("[]")
        try:
            names.append(x509.IPAddress(ip_address(bare)))
        except ValueError:
            if bare.isascii() and 0 < len(bare) <= NAME_SIZE_MAX:
                names.append(x509.DNSName(bare))
    return list(dict.fromkeys(names))
