"""Brokers in processes of their own that are one cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from quarry_mq.store.security.sealer import new_key
from tests.e2e.broker import Broker, until

QUICK: Mapping[str, object] = {
    "store.segment_size": "16MiB",
    "delivery.polling_min_ms": 100,
    "network.stop_grace_ms": 500,
    "cluster.exchange_interval_ms": 200,
    "cluster.unreachable_after_ms": 2_000,
}


class ClusterOfBrokers:
    """Members are called `quarry-0`, `quarry-1`, …; each knows the admin address of the first, and finds the others."""

    def __init__(self, root: Path, *, settings: Mapping[str, object] | None = None) -> None:
        """`settings` of all members go before the quick ones."""
        self._root = root
        self._settings = {**QUICK, **(settings or {})}
        self._key = root / "cluster.key"
        self._key.write_bytes(new_key())
        self._key.chmod(0o600)
        self.brokers: list[Broker] = []
        self._made: list[Broker] = []

    def add(self) -> Broker:
        broker = self.make(f"quarry-{len(self.brokers)}")
        self.brokers.append(broker)
        self.start(broker)
        return broker

    def make(self, name: str) -> Broker:
        """One that is not started, and not asked what it says."""
        self._made.append(Broker(self._root / name, logs=self._root / f"{name}-logs"))
        return self._made[-1]

    def start(self, broker: Broker) -> None:
        broker.start(settings=self.settings(broker.store.name))

    def settings(self, name: str) -> dict[str, object]:
        return {
            **self._settings,
            "broker.name": name,
            "cluster.members": json.dumps([self.brokers[0].admin]),
            "cluster.key_file": self._key,
        }

    def agree(self, found: Callable[[Broker], Any], expected: Any) -> None:
        """Wait until all members say so."""
        for broker in self.brokers:
            last: list[Any] = [None]

            def says_so(broker: Broker = broker, last: list[Any] = last) -> bool:
                with suppress(AssertionError):
                    last[0] = found(broker)
                return bool(last[0] == expected)

            try:
                until(says_so, f"{broker.admin} says {expected}")
            except AssertionError as error:
                raise AssertionError(f"{error}, but {last[0]}; its log:\n{broker.words()}") from None

    def close(self) -> None:
        for broker in self._made:
            broker.close()


def rows(broker: Broker, *command: str) -> list[dict[str, Any]]:
    """What a command lists."""
    return [json.loads(line) for line in broker.administer(*command, "--json").splitlines()]


def reachable(broker: Broker) -> list[str]:
    return [each["name"] for each in rows(broker, "cluster", "members") if each["reachable"]]


def names(broker: Broker, what: str) -> list[str]:
    return [each["name"] for each in rows(broker, what, "list")]


def total(broker: Broker, metric: str) -> float:
    """Over all series of a metric with labels."""
    lines = broker.get("/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{metric}{{"))
