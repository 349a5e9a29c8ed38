"""Measures what TLS, and signatures with rules, cost a client and its broker.

The official Java client loads brokers that differ only in these, each in turns with one that has neither: its plain
connections carry no signature. The user is an ordinary one with its own rules, as the broker looks them up for every
call. Client and server share the cores, and the client encrypts as much as the server, so compare also the server's CPU
time per message.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

from bench.harness import Case, Options
from bench.java_load import SEND_AND_RECEIVE, SIZES, TITLES, JavaLoad
from bench.peers import load as load_generator
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.model import Action, Resource, Rule, Secret, User
from quarry_mq.store.security.sealer import Sealer, new_key
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "What is left of the rates of the official Java client with TLS, with users and rules, and with both?"
TOPIC: Final = "bench-orders"
USER: Final = "bench-shop"
SECRET: Final = "bench-secret-0001"


@dataclass(frozen=True, slots=True)
class Guards:
    """The security that a broker requires of its clients."""

    tls: bool = False
    users: bool = False

    @property
    def title(self) -> str:
        return " and ".join([*(["TLS"] * self.tls), *(["users with rules"] * self.users)]) or "nothing"

    @property
    def access(self) -> Mapping[str, str]:
        login = {"user": USER, "secret": SECRET} if self.users else {}
        return {"tls": "on", **login} if self.tls else login


OPEN: Final = Guards()
GUARDED: Final = (Guards(tls=True), Guards(users=True), Guards(tls=True, users=True))


def run(options: Options) -> list[Case]:
    class_path(load_generator.PROJECT)  # before anything is started
    sizes = SIZES[options.scale]
    with ExitStack() as running:
        brokers = {
            guards: running.enter_context(closing(_broker(options.scratch, guards))) for guards in (OPEN, *GUARDED)
        }
        load = running.enter_context(closing(LoadGenerator(options.scratch / "load")))
        access = {broker.endpoint: guards.access for guards, broker in brokers.items()}
        aimed = JavaLoad(load, SEND_AND_RECEIVE, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed, access=access)
        for broker in brokers.values():
            broker.start()
            aimed.wait_until_served(broker)
            aimed.warm(broker, sizes.warm_s)
        return [_case(aimed, mode, sizes.rounds, guards, brokers) for guards in GUARDED for mode in SEND_AND_RECEIVE]


def _case(aimed: JavaLoad, mode: str, rounds: int, guards: Guards, brokers: Mapping[Guards, Quarry]) -> Case:
    ours, theirs, details = aimed.compare(mode, rounds, brokers[guards], brokers[OPEN])
    return Case(
        name=f"{guards.title}: {TITLES[mode]}",
        unit="messages",
        peer="the same broker without",
        ours=ours,
        theirs=theirs,
        details=details,
    )


def _broker(scratch: Path, guards: Guards) -> Quarry:
    """Make a broker, not yet started. Sends are answered at once: the disk would hide the difference."""
    home = scratch / guards.title.replace(" ", "-")
    made = scratch / f"{home.name}-files"
    made.mkdir()
    settings = {**(_tls_settings(made) if guards.tls else {}), **(_user_settings() if guards.users else {})}
    broker = Quarry(home, Durability.ASYNC, settings)
    if guards.users:
        _add_user(broker.store, settings["QUARRY_SECURITY_KEY"])
    return broker


def _tls_settings(directory: Path) -> dict[str, str]:
    certificate, key = directory / "server.pem", directory / "server.key"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    return {
        "QUARRY_NETWORK_TLS": "required",
        "QUARRY_NETWORK_TLS_CERTIFICATE": str(certificate),
        "QUARRY_NETWORK_TLS_KEY": str(key),
    }


def _user_settings() -> dict[str, str]:
    return {
        "QUARRY_SECURITY_AUTHENTICATION": "true",
        "QUARRY_SECURITY_AUTHORIZATION": "true",
        "QUARRY_SECURITY_KEY": new_key().decode(),
    }


def _add_user(root: Path, key: str) -> None:
    """Add an ordinary user who may send and receive, and whose rules also cover resources that are not used."""
    settings = StoreSettings(root=root, durability=Durability.ASYNC)
    sealer = Sealer([key.encode()])
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None, sealer=sealer)
    try:
        store.users.create(User(name=USER, secrets=(Secret(1, SECRET, 0),), next_secret_number=2))
        for resource, action in (
            ("topic:bench-*", Action.SUB),
            ("topic:bench-orders", Action.PUB),
            ("group:bench-*", Action.SUB),
            ("topic:shop-*", Action.PUB),
            ("cluster:*", Action.GET),
        ):
            store.policies.put_rule(USER, Rule(resource=Resource.parse(resource), actions=frozenset({action})))
    finally:
        store.close()
