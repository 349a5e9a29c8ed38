"""Checks addresses: those that a broker listens on, and those that it sends clients to."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

from quarry_mq.cli.context_file import Context
from quarry_mq.cli.doctor.findings import Finding, fault, fine, unknown, warning
from quarry_mq.cli.online.connection.probe import TIMEOUT_S, is_reached
from quarry_mq.server.addresses import Address
from quarry_mq.server.process.host_commands import KUBERNETES
from quarry_mq.server.settings.broker_settings import LISTENING, BrokerSettings
from quarry_mq.server.settings.sections import OFF


def operators(settings: BrokerSettings) -> Iterator[Finding]:
    """Check whether operators have to authenticate, where other machines can reach the admin ports."""
    found = settings.open_to_everybody
    for name, address in found.items():
        advice = "users (security.authentication) or certificates (network.admin_client_ca)"
        yield warning(
            "operators", f"network.{name} = {address}: anybody who can reach it can administer the broker", advice
        )
    if not found:
        asked = settings.security.asks_operators or settings.network.admin_client_ca is not None
        yield fine("operators", "must authenticate" if asked else "may be anybody on this machine")


class Advertised(NamedTuple):
    """An address that clients, or other members of the cluster, are sent to."""

    setting: str
    address: Address
    with_tls: bool
    who: str = "clients"
    listens_on: str = "network.listen"


def ports(settings: BrokerSettings) -> Iterator[Finding]:
    """Check whether a broker that is started now could listen on its ports. A running broker already has them."""
    named: dict[str, str] = {key: text for key in LISTENING if (text := settings.value_of(key)) not in (None, OFF)}
    taken = 0
    for name, text in named.items():
        reason = _refusal(Address.parse(text))
        if reason is not None:
            taken += 1
            seen = f"{name} = {text}: {reason}"
            advice = f"`ss -ltnp` shows the process that has the port; stop it, or set another {name}"
            if settings.may_be_left_out(name):
                yield warning("ports", f"{seen}; the broker starts without it", advice)
            else:
                yield fault("ports", seen, advice)
    if not taken:
        yield fine("ports", ", ".join(named.values()) + " are free")


def _refusal(address: Address) -> str | None:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    return None


def advertised_of(settings: BrokerSettings) -> list[Advertised]:
    """Return the advertised addresses that are set."""
    network = settings.network
    found = []
    if network.advertise is not None:
        found.append(Advertised("network.advertise", Address.parse(network.advertise), network.tls == "required"))
    if network.tls_advertise is not None:
        found.append(Advertised("network.tls_advertise", Address.parse(network.tls_advertise), True))
    if settings.cluster.advertise is not None:
        address = Address.parse(settings.cluster.advertise)
        found.append(Advertised("cluster.advertise", address, network.admin_tls, "members", "network.admin"))
    return found


def advertised(settings: BrokerSettings, context: Context | None, *, is_served: bool) -> Iterator[Finding]:
    """Check whether a client or a member that is sent to the advertised addresses can connect."""
    found = advertised_of(settings)
    if not any(each.who == "clients" for each in found):
        yield fine("advertised address", "not set: clients are sent to the address that they used")
    for each in found:
        yield from _reached(each, context, is_served=is_served, listens_on=settings.value_of(each.listens_on))


def _reached(each: Advertised, context: Context | None, *, is_served: bool, listens_on: str) -> Iterator[Finding]:
    seen = f"{each.setting} = {each.address}"
    try:
        places = {str(info[4][0]) for info in socket.getaddrinfo(each.address.host, each.address.port)}
    except OSError as error:
        advice = f"set an address that {each.who} can resolve, or add the name to DNS"
        yield fault("advertised address", f"{seen}: {error.strerror or error}", advice)
        return
    if all(place.startswith("127.") or place == "::1" for place in places) and Address.parse(listens_on).is_unspecified:
        advice = f"{each.who} on other machines would connect to themselves: set the name of this machine"
        yield warning("advertised address", seen, advice)
    elif not is_served:
        yield unknown("advertised address", f"{seen}: not checked, because no broker is running")
    elif is_reached(str(each.address), context if context is not None else Context(tls=each.with_tls)):
        yield fine("advertised address", f"{seen}: {each.who} reach it")
    elif KUBERNETES in os.environ and each.who == "clients":
        yield unknown(
            "advertised address", f"{seen}: no answer, but a NetworkPolicy may keep this pod alone from there"
        )
    else:
        advice = (
            f"{each.who} cannot connect there: set an address at which they reach {each.listens_on}, or open the port"
        )
        yield fault("advertised address", f"{seen}: no answer from there within {TIMEOUT_S:.0f} s", advice)
