"""Copies of one store: brokers in processes of their own that follow each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from quarry_mq.cli.demo import free_ports
from quarry_mq.server.replicas.role import RoleFiles
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.security.sealer import new_key
from tests.e2e.broker import Broker, environment_of, until
from tests.e2e.conftest import QUICK

LOOPBACK: Final = "127.0.0.1"


class Copies:
    """Copies named a, b, … of one store. None is started at first, and a is the primary once it is."""

    def __init__(
        self,
        home: Path,
        names: Sequence[str] = "ab",
        settings: Mapping[str, object] = MappingProxyType({}),
        hosts: Mapping[str, str] = MappingProxyType({}),
        *,
        has_first: bool = True,
    ) -> None:
        """`hosts` are the addresses of copies that are not on loopback. Without `has_first` no copy is the primary."""
        self._home = home
        self._hosts = hosts
        self.key = home / "replicas.key"
        self.key.write_bytes(new_key() + b"\n")
        self.key.chmod(0o600)
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._addresses = {name: f"{hosts.get(name, LOOPBACK)}:{port}" for name, port in self.ports.items()}
        self._peers = [f"{name}={address}" for name, address in self._addresses.items()]
        self._settings = {"replication.mode": "async", **QUICK, **settings}
        self.brokers = {name: self.another(name, store=home / name, key=self.key) for name in names}
        if has_first:
            self.ask("a", "promote")

    def another(self, name: str, *, store: Path, key: Path | None = None) -> Broker:
        """A broker with the settings of a copy, on any store."""
        own = {
            "replication.key_file": key or self.key,
            "network.replication": self._addresses[name],
            "replication.replica": name,
            "replication.peers": json.dumps(self._peers),
        }
        environment = environment_of({**self._settings, **own})
        return Broker(store, logs=store.with_name(f"logs-{store.name}"), environment=environment)

    def __getitem__(self, name: str) -> Broker:
        return self.brokers[name]

    def files(self, name: str) -> RoleFiles:
        """The files that say which copy this is."""
        return RoleFiles(PosixCopyingDisk(), self._home / name)

    def ask(self, name: str, what: str) -> None:
        """Ask a copy for something, as `quarry replica` does."""
        self.files(name).ask(what)

    def says(self, name: str) -> str:
        """Return what the readiness probe says."""
        try:
            return self[name].get("/readyz")[1].strip()
        except OSError:
            return ""

    def start(self, *names: str) -> None:
        """Start copies, and wait until they follow a primary."""
        for name in names:
            self[name].launch()
        until(lambda: all("follows" in self.says(name) for name in names), f"{names} follow")

    def has_all(self, primary: str, count: int = 1) -> bool:
        """Return whether this many copies follow, and have all that the primary has."""
        lines = self[primary].get("/metrics")[1].splitlines()
        connected = [line for line in lines if line.startswith("quarry_replica_connected{") and line.endswith(" 1.0")]
        lags = ("quarry_replica_lag_bytes", "quarry_replica_lag_changes")
        split = [line.partition("{")[::2] for line in lines]
        lagging = {rest.partition("}")[0] for name, rest in split if name in lags and not rest.endswith(" 0.0")}
        return len(connected) == count and len(lagging) <= len(self.brokers) - 1 - count

    def wait_for_all(self, primary: str, count: int = 1) -> None:
        until(
            lambda: self.has_all(primary, count), f"copies have all: {[each.words() for each in self.brokers.values()]}"
        )

    def promote(self, name: str) -> None:
        """Promote a copy, and wait until it serves."""
        self.ask(name, "promote")
        assert self[name].ready_or_ended() is None

    def log_files(self, name: str) -> dict[str, bytes]:
        """The segments of a copy's log, by name. The copy has to be stopped."""
        return {path.name: path.read_bytes() for path in (self._home / name / "commitlog").iterdir() if path.is_file()}

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()
