"""Checks the broker that runs with these settings, if one does: its own report, and its clock."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.doctor.certificate import covers, names_of
from quarry_mq.cli.doctor.findings import Finding, Verdict, fault, fine, unknown, warning
from quarry_mq.cli.doctor.machine import DISTRIBUTION
from quarry_mq.cli.doctor.network import advertised_of
from quarry_mq.cli.online.connection.concerns import ask_concerns
from quarry_mq.cli.online.connection.probe import TIMEOUT_S, Answer, Told, who_is
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas.status import FollowingFile, ReplicaStatus
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.store.fs import PosixDisk

CLOCK_SLACK_S: Final = 5.0
"""Seconds by which clocks may differ: HTTP gives the time in whole seconds, and a call takes a moment."""


def ask(settings: BrokerSettings, context: Context | None) -> Answer | None:
    """Ask the admin port of the context, or else `network.admin`, which broker it is; None: no answer."""
    address = (
        context.admin if context is not None and context.admin else str(Address.parse(settings.network.admin).from_here)
    )
    return who_is(address, _context(settings, context))


def _context(settings: BrokerSettings, context: Context | None) -> Context | None:
    """Return how the admin port is called: as the context says, or else as the broker's own settings do."""
    if context is None and settings.network.admin_tls:
        return Context(tls=True, tls_ca=settings.network.tls_certificate)
    return context


def followed(settings: BrokerSettings, clock: Clock) -> ReplicaStatus | None:
    """Return how the copy in the store's folder follows its primary; None if no process follows there."""
    if not settings.replication.is_on:
        return None
    last = FollowingFile(PosixDisk(), settings.store.directory, clock).read()
    return last.status if last is not None and last.is_fresh(clock.wall_ms()) else None


def copy(last: ReplicaStatus | None) -> Iterator[Finding]:
    """Report how a copy follows. It serves no clients, and has no admin port that could be asked."""
    if last is None:
        return
    if last.is_connected:
        state = "is seeded by" if last.is_seeding else "follows"
        yield fine("copy", f"{state} {last.primary}: {last.lag_s:.1f} s, {last.missing} behind")
    else:
        advice = "start the primary, or make it reachable; if it is lost, `quarry replica promote` on the best copy"
        yield warning("copy", f"follows nobody: {last.problem or 'no primary answers'}", advice)


def serves(answer: Answer | None, settings: BrokerSettings) -> bool:
    """Return whether that broker has the store that the settings name."""
    if answer is None or answer.broker is None:
        return False
    return Path(answer.broker.store_directory).resolve() == settings.store.directory.resolve()


def broker(answer: Answer | None, settings: BrokerSettings) -> Iterator[Finding]:
    """Report which broker answers, and check whether it runs with these settings."""
    if answer is None:
        yield fine("broker", "no broker is running with these settings")
    elif answer.broker is None:
        yield unknown("broker", f"{answer.address}: {answer.refusal}; `quarry --context NAME doctor` asks as a user")
    else:
        yield from _told(answer.broker, answer.address, settings)


def _told(told: Told, address: str, settings: BrokerSettings) -> Iterator[Finding]:
    seen = f"{told.name} at {address}, version {told.version}, since {time_text(told.started_at_ms)}"
    if Path(told.store_directory).resolve() != settings.store.directory.resolve():
        advice = "this broker has other settings, or another broker has the port: give the right --config or --store"
        yield fault("broker", f"{seen}, serves {told.store_directory}", advice)
        return
    if told.version != version(DISTRIBUTION):
        advice = "restart the broker to run the installed version"
        yield warning("broker", f"{seen}; {version(DISTRIBUTION)} is installed", advice)
    else:
        yield fine("broker", seen)


def concerns(answer: Answer | None, settings: BrokerSettings, context: Context | None) -> Iterator[Finding]:
    """Report the broker's own list of concerns, which console and `quarry top` show, too."""
    if answer is None or answer.broker is None:
        return
    found = ask_concerns(answer.address, _context(settings, context))
    if isinstance(found, str):
        yield unknown("concerns", f"{answer.address}: {found}; `quarry --context NAME doctor` asks as a user")
        return
    for each in found:
        verdict = Verdict.FAULT if each.is_fault else Verdict.WARNING
        seen = each.text if each.since is None else f"{each.text} (since {each.since})"
        advice = each.command or "the text says what to do"
        yield Finding("concerns", verdict, seen, advice, each.kind or None, each.command or None)
    if not found:
        yield fine("concerns", "the broker has none")


def health(
    settings: BrokerSettings, clock: Clock, authority: Path | None, *, is_told: bool = False
) -> Iterator[Finding]:
    """Check `/readyz`, and the difference between the broker's clock and this one.

    If the broker `is_told` to have concerns, those say what it refuses.
    """
    network = settings.network
    address = Address.parse(network.http).from_here
    try:
        status, text, date = _get_readiness(address, _tls(settings, address, authority) if network.http_tls else None)
    except (OSError, ValueError, HTTPException) as error:
        yield unknown("health", f"http{'s' if network.http_tls else ''}://{address}/readyz: {error}")
        return
    if is_told and ("refused" in text or "poisoned" in text):
        pass  # one of the concerns says so, with its command
    elif status != 200 or "refused" in text:
        yield fault("health", text.strip() or f"status {status}", "the broker's log has the cause")
    else:
        yield fine("health", text.strip())
    if date:
        apart_s = parsedate_to_datetime(date).timestamp() - clock.wall_ms() / 1000
        if abs(apart_s) > CLOCK_SLACK_S:
            where = "behind" if apart_s < 0 else "ahead of"
            advice = "correct both clocks: signed calls are refused, and delays and expiry follow the broker's clock"
            yield fault("clock", f"the broker's is {abs(apart_s):.0f} s {where} this machine's", advice)
        else:
            yield fine("clock", "the broker's agrees with this machine's")


class _Tls(NamedTuple):
    """The authority by which the certificate of a port is verified, and the name that it must have."""

    authority: Path | None
    name: str


def _tls(settings: BrokerSettings, address: Address, authority: Path | None) -> _Tls:
    """Return how to verify the port at an address of this machine.

    The certificate need not have that address: it must have one of the names by which others know the broker.
    """
    certificate = settings.network.tls_certificate
    try:
        names = [] if certificate is None else names_of(certificate)
    except (OSError, ValueError):
        names = []  # the check of the certificate says why
    known = [address.host, "localhost", *(each.address.host for each in advertised_of(settings))]
    name = next((name for name in known if covers(names, name)), address.host)
    return _Tls(authority or certificate, name)


def _get_readiness(address: Address, tls: _Tls | None) -> tuple[int, str, str]:
    """Return status, text and date of the answer of `/readyz`."""
    with closing(HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)) as connection:
        connection.connect()
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.authority)
            connection.sock = context.wrap_socket(connection.sock, server_hostname=tls.name)
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        return answer.status, answer.read(4_096).decode(errors="replace"), answer.headers.get("Date", "")
