"""Reload the certificate that the ports show: check it every few seconds, and exchange it when it changes.

Listeners stay open meanwhile. Certificate, key and authorities of all ports are taken together, or none of them. A
broken file leaves the certificate as it was. The self-signed certificate is not loaded before a client speaks TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, Self

import structlog

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.front import LiveTls, TlsFiles
from quarry_mq.server.process.self_signed import RENEW_BEFORE, SelfSigned
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import ClusterSection, NetworkSection
from quarry_mq.store.errors import Invalid

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 3.0
WARN_BEFORE_S: Final = 14 * 86_400
WARN_INTERVAL_S: Final = 86_400
RENEW_BEFORE_S: Final = RENEW_BEFORE.total_seconds()
RENEW_INTERVAL_S: Final = 3_600

Prints = dict[Path, bytes | str]
"""Hash of the content of each file, or the reason why it cannot be read."""


class TlsPorts(NamedTuple):
    """Files that each kind of port shows; None for a port without TLS."""

    messaging: TlsFiles | None = None
    admin: TlsFiles | None = None
    http: TlsFiles | None = None
    console: TlsFiles | None = None

    @classmethod
    def of(cls, settings: BrokerSettings, clock: Clock | None = None) -> Self:
        """Return the files that the settings name, or for messaging clients the self-signed certificate."""
        network = settings.network
        certificate, key = network.tls_certificate, network.tls_key
        if certificate is None or key is None:
            if not network.is_self_signed:
                return cls()
            made = SelfSigned.of(settings, clock or SystemClock())
            authority, demand = network.tls_client_ca, network.tls_client_certificate
            return cls(TlsFiles(made.certificate, made.key, authority, demand, make=made.make))
        messaging = TlsFiles(certificate, key, network.tls_client_ca, network.tls_client_certificate)
        return cls(
            messaging if network.serves_tls else None,
            TlsFiles(certificate, key, network.admin_client_ca) if network.admin_tls else None,
            TlsFiles(certificate, key, protocol="http/1.1") if network.http_tls else None,
            TlsFiles(certificate, key, network.admin_client_ca, protocol="http/1.1") if network.console_tls else None,
        )


class PeerTls(NamedTuple):
    """Files that the admin ports of other members are checked with, and files that are shown to them."""

    authority: Path | None
    certificate: Path | None
    key: Path | None

    @classmethod
    def of(cls, network: NetworkSection, cluster: ClusterSection) -> Self | None:
        """Return the files for calls to other members: all of a cluster use TLS on their admin ports, or none."""
        if not network.admin_tls:
            return None
        return cls(cluster.tls_ca, network.tls_certificate, network.tls_key)

    def read(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read authority, key and certificate, in the order that grpcio takes them. Raises OSError."""
        paths = self.authority, self.key, self.certificate
        authority, key, certificate = (None if path is None else path.read_bytes() for path in paths)
        return authority, key, certificate


class Certificates:
    """Hold the certificates that the ports of one broker show now. `look` may run on any thread, one at a time."""

    def __init__(self, ports: TlsPorts, clock: Clock | None = None) -> None:
        """Raises Invalid that names the file."""
        self._clock = clock or SystemClock()
        self._refused: Prints = {}
        self._suspect: Prints | None = None
        self._warned_at_s: float | None = None
        self._renewed_at_s: float | None = None
        self.failed_reloads = 0
        self.refusal = ""
        """The reason for which the files that are there now are not used; empty if they are."""
        try:
            self.messaging, self.admin, self.http, self.console = (
                None if files is None else LiveTls(files) for files in ports
            )
            self.expires_s = self._expiry()
        except ValueError as cause:
            raise Invalid(str(cause)) from cause

    def load_messaging(self) -> None:
        """Load the certificate of the messaging ports, and make it if that is to be done. Raises Invalid that names
        the file.
        """
        if self.messaging is None:
            return
        try:
            self.messaging.load()
        except ValueError as cause:
            raise Invalid(str(cause)) from cause

    async def watch(self) -> None:
        """Check the files every few seconds, until cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> None:
        """Load files that have changed, renew the self-signed certificate, and warn of one that expires soon."""
        lives = self._lives()
        if not lives:
            return
        if self.expires_s is None:
            self.expires_s = self._expiry()
        prints = _prints(_paths(live.files for live in lives))
        if prints == _shown_prints(lives):
            self._refused = prints  # files that were refused before are reported again if they come again
            self.refusal = ""
        elif prints != self._refused:
            self._take(lives, prints)
        self._renew(lives[0].files)
        self._warn()

    def _take(self, lives: list[LiveTls], prints: Prints) -> None:
        try:
            read = [live.read() for live in lives]
            expires_s = _expires_s(read[0].certificate, lives[0].files.certificate)
        except ValueError as error:
            if prints != self._suspect:
                self._suspect = prints  # perhaps only some of the new files are there yet: the next look decides
                return
            self._refused = prints
            self.failed_reloads += 1
            self.refusal = str(error)
            log.error("the new TLS files are not used, the old ones stay", reason=str(error))
            return
        if _prints(prints) != prints:
            return  # changed while it was read
        for live, shown in zip(lives, read, strict=True):
            live.show(shown)
        self._refused = prints
        self.expires_s, self._warned_at_s, self.refusal = expires_s, None, ""
        log.info("new TLS files are in use", certificate=str(lives[0].files.certificate))

    def _renew(self, files: TlsFiles) -> None:
        """Make the self-signed certificate again before it ends. It is loaded as any changed file."""
        if files.make is None or self.expires_s is None:
            return
        now_s, elapsed_s = self._clock.wall_ms() / 1000, self._clock.monotonic_s()
        is_due = self._renewed_at_s is None or elapsed_s - self._renewed_at_s >= RENEW_INTERVAL_S
        if is_due and self.expires_s - now_s < RENEW_BEFORE_S:
            self._renewed_at_s = elapsed_s
            try:
                files.make()
            except ValueError as error:
                log.error("the self-signed certificate cannot be renewed", reason=str(error))

    def _lives(self) -> list[LiveTls]:
        """Return what is loaded."""
        lives = self.messaging, self.admin, self.http, self.console
        return [live for live in lives if live is not None and live.is_loaded]

    def _expiry(self) -> float | None:
        return next((_expires_s(live.now.certificate, live.files.certificate) for live in self._lives()), None)

    def _warn(self) -> None:
        if self.expires_s is None:
            return
        now_s, elapsed_s = self._clock.wall_ms() / 1000, self._clock.monotonic_s()
        is_due = self._warned_at_s is None or elapsed_s - self._warned_at_s >= WARN_INTERVAL_S
        if is_due and self.expires_s - now_s < WARN_BEFORE_S:
            self._warned_at_s = elapsed_s
            path, days = self._lives()[0].files.certificate, round((self.expires_s - now_s) / 86_400, 1)
            log.warning("the TLS certificate expires soon or has expired", certificate=str(path), days_left=days)


def _expires_s(pem: bytes, path: Path) -> float:
    """Return the seconds since 1970 at which the certificate ends. Raises ValueError that names the file."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)[0].not_valid_after_utc.timestamp()
    except (ValueError, x509.InvalidVersion) as cause:
        raise ValueError(f"TLS: {path} cannot be used: {cause}") from cause


def _paths(ports: Iterable[TlsFiles]) -> list[Path]:
    return sorted(
        {path for files in ports for path in (files.certificate, files.key, files.client_ca) if path is not None}
    )


def _shown_prints(lives: Iterable[LiveTls]) -> Prints:
    """Return the hashes of the files as they were when they were loaded."""
    contents: dict[Path, bytes] = {}
    for files, shown in ((live.files, live.now) for live in lives):
        contents |= {files.certificate: shown.certificate, files.key: shown.key}
        if files.client_ca is not None and shown.client_ca is not None:
            contents[files.client_ca] = shown.client_ca
    return {path: sha256(content).digest() for path, content in contents.items()}


def _prints(paths: Iterable[Path]) -> Prints:
    return {path: _print(path) for path in paths}


def _print(path: Path) -> bytes | str:
    try:
        return sha256(path.read_bytes()).digest()
    except OSError as error:
        return str(error)
