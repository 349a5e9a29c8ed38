"""Checks the certificate that the ports of a broker present."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from quarry_mq.cli.doctor.findings import Finding, fault, fine, warning
from quarry_mq.cli.doctor.network import advertised_of
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.front import LiveTls, TlsFiles
from quarry_mq.server.process.certificates import WARN_BEFORE_S, Certificates, TlsPorts
from quarry_mq.server.process.self_signed import SelfSigned
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.errors import Invalid


def certificate(settings: BrokerSettings, clock: Clock) -> Iterator[Finding]:
    """Check whether the certificate is usable, how long it is valid, and whether it covers the advertised addresses."""
    network = settings.network
    if network.tls_certificate is None:
        yield from _self_signed(settings, clock)
        return
    path = network.tls_certificate
    try:
        Certificates(TlsPorts.of(settings), clock)
        shown = x509.load_pem_x509_certificate(path.read_bytes())
    except (Invalid, OSError, ValueError) as error:
        advice = (
            "network.tls_certificate and network.tls_key must be given together, both PEM, and readable for the "
            "broker's user"
        )
        yield fault("certificate", str(error), advice)
        return
    yield _lifetime(path, shown, datetime.fromtimestamp(clock.wall_ms() / 1000, UTC), NEW_ONE)
    names = _names(shown)
    for each in advertised_of(settings):
        if (each.with_tls or each.who == "clients") and not covers(names, each.address.host):
            text = f"{path} is for {', '.join(names) or 'nobody'}, but {each.who} are sent to {each.address.host}"
            yield fault(
                "certificate", text, f"use a certificate that names {each.address.host}, or another {each.setting}"
            )


def _self_signed(settings: BrokerSettings, clock: Clock) -> Iterator[Finding]:
    """Check the self-signed certificate without making it. Most clients do not look at its names."""
    if not settings.network.is_self_signed:
        yield fine("certificate", "no port uses TLS")
        return
    files = SelfSigned.of(settings, clock)
    if not files.certificate.exists():
        yield fine("certificate", f"{files.certificate}, self-signed, is made for the first client with TLS")
        return
    try:
        LiveTls(TlsFiles(files.certificate, files.key))
        shown = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    except (OSError, ValueError) as error:
        advice = f"remove {files.certificate.parent} and restart the broker: it makes another certificate"
        yield fault("certificate", str(error), advice)
        return
    yield _lifetime(files.certificate, shown, datetime.fromtimestamp(clock.wall_ms() / 1000, UTC), RENEWED)
    names = _names(shown)
    for each in advertised_of(settings):
        if each.with_tls and not covers(names, each.address.host):
            text = f"{files.certificate} is for {', '.join(names)}, but clients are sent to {each.address.host}"
            advice = "clients that verify it refuse the broker; to have it made again, remove it and restart the broker"
            yield warning("certificate", text, advice)


NEW_ONE: Final = "put a new certificate there: it is used at once"
RENEWED: Final = "a running broker renews it when a client uses TLS; its log says why not"


def _lifetime(path: Path, shown: x509.Certificate, now: datetime, advice: str) -> Finding:
    begins, ends = shown.not_valid_before_utc, shown.not_valid_after_utc
    left_s = (ends - now).total_seconds()
    days = left_s / 86_400
    if now < begins:
        return fault("certificate", f"{path} is valid from {begins:%Y-%m-%d %H:%M} UTC on", "check the clock")
    if left_s < 0:
        return fault(
            "certificate",
            f"{path} ended on {ends:%Y-%m-%d %H:%M} UTC",
            advice,
        )
    if left_s < WARN_BEFORE_S:
        return warning("certificate", f"{path} ends in {days:.1f} days", advice)
    return fine("certificate", f"{path} is valid for {days:.0f} days")


def names_of(path: Path) -> Sequence[str]:
    """Return the names and addresses of the certificate in a file. Raises OSError, ValueError."""
    return _names(x509.load_pem_x509_certificate(path.read_bytes()))


def _names(shown: x509.Certificate) -> Sequence[str]:
    try:
        found = shown.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return ()
    assert isinstance(found, x509.SubjectAlternativeName)
    addresses = [str(each) for each in found.get_values_for_type(x509.IPAddress)]
    return [*found.get_values_for_type(x509.DNSName), *addresses]


def covers(names: Sequence[str], host: str) -> bool:
    """Return whether a name of the certificate covers the host. A wildcard stands for one label."""
    wanted = host.lower().strip("[]")
    return any(name.lower() == wanted or name.lower() == f"*.{wanted.partition('.')[2]}" for name in names)
