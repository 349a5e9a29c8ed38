"""Compute the settings that differ between the shards of `quarry serve --shards N`: a pure function of the settings.

A shard reads all other settings as a single broker does, from the same file and the same environment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from quarry_mq.server.addresses import split_address
from quarry_mq.server.settings.broker_settings import ENVIRONMENT_PREFIX, LISTENING, BrokerSettings, SettingsInvalid
from quarry_mq.server.settings.sections import OFF
from quarry_mq.store.errors import NotAStore, StoreUnusable
from quarry_mq.store.fs import Disk
from quarry_mq.store.layout.paths import StorePaths, parse_shard_name, shard_name

PORT_STEP: Final = 100
PORT_MAX: Final = 65_535
MESSAGING: Final = ("network.listen", "network.tls_listen")
ADVERTISED: Final = ("network.advertise", "network.tls_advertise", "remoting.advertise", "cluster.advertise")
WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""Hosts that stand for all addresses of a machine, each with the address by which the machine reaches itself."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Describe one of the brokers of a machine."""

    name: str
    settings: Mapping[str, str]
    """The shard's own settings, by `section.key`: names, paths and addresses."""
    kept_open: Sequence[str]
    """Addresses where the shard listens that the supervisor can open before the shard runs."""

    @property
    def variables(self) -> dict[str, str]:
        """Return the shard's own settings as environment variables."""
        return variables_of(self.settings)


def plan_shards(settings: BrokerSettings, count: int) -> list[Shard]:
    """Plan `count` shards: shard i has a store and a name of its own, and all ports moved by 100 times i.

    Raises SettingsInvalid, which names the setting: port 0, ports beyond the last one, and two that are the same; or
    copies on other machines, each of which is of one store.
    """
    if settings.replication.is_on:
        raise SettingsInvalid(
            "replication.mode: shards of one supervisor have no copies; run each of them as a broker of its own"
        )
    shards = [_planned(settings, number) for number in range(count)]
    for keys in (LISTENING, ADVERTISED):
        _require_different_ports(shards, keys)
    return shards


def _planned(settings: BrokerSettings, number: int) -> Shard:
    own = dict(_own_settings(settings, number))
    # grpcio opens its ports itself
    messaging = MESSAGING if settings.network.front == "h2" else ()
    return Shard(shard_name(number), own, [own[key] for key in messaging if key in own])


def _own_settings(settings: BrokerSettings, number: int) -> Iterator[tuple[str, str]]:
    name = shard_name(number)
    yield "store.directory", str(settings.store.directory / name)
    yield "broker.name", f"{settings.broker.name}-{number}"
    for key in (*LISTENING, *ADVERTISED):
        address = settings.value_of(key)
        if key == "network.console" and settings.console_goes_around:
            address = OFF  # set explicitly, it would be refused
        if key.startswith("remoting.") and number == 0 and not settings.is_set(key):
            continue  # set explicitly, it would have to be free
        if address is not None:
            yield key, _moved(key, address, number)
    if settings.network.tls_directory is None:
        # clients that verify the certificate need to know one, not one for each shard
        yield "network.tls_directory", str(settings.tls_directory)
    if settings.index.upload_to is not None:
        # files of two stores may have one name
        yield "index.upload_to", f"{settings.index.upload_to.rstrip('/')}/{name}"


def _moved(key: str, address: str, number: int) -> str:
    if address == OFF:
        return address
    host, port = split_address(address)
    if port == 0:
        raise SettingsInvalid(f"{key} = {address}: shards need fixed ports, not 0")
    moved = port + PORT_STEP * number
    if moved > PORT_MAX:
        raise SettingsInvalid(
            f"{key} = {address}: {shard_name(number)} would get port {moved}, but {PORT_MAX} is the highest: "
            "choose a lower port, or fewer shards"
        )
    return f"{host}:{moved}"


def _require_different_ports(shards: Sequence[Shard], keys: Sequence[str]) -> None:
    of_port: dict[int, list[tuple[str, str, str]]] = {}
    for shard in shards:
        for key in keys:
            address = shard.settings.get(key)
            if address is not None and address != OFF:
                host, port = split_address(address)
                of_port.setdefault(port, []).append((host, key, shard.name))
    for port, users in of_port.items():
        for (host, key, name), (other_host, other_key, other_name) in combinations(users, 2):
            if host == other_host or WILDCARDS.keys() & {host, other_host}:
                raise SettingsInvalid(
                    f"{key} of {name} and {other_key} of {other_name} would both be port {port}: "
                    "choose ports that differ in their last two digits"
                )


def cluster_settings(shards: Sequence[Shard], *, key_file: Path, members: Sequence[str] = ()) -> dict[str, str]:
    """Return the settings that make one cluster of the shards; `members` are those of other machines."""
    here = [_reached_here(shard.settings["network.admin"]) for shard in shards]
    return {"cluster.members": json.dumps([*here, *members]), "cluster.key_file": str(key_file)}


def _reached_here(address: str) -> str:
    host, port = split_address(address)
    return f"{WILDCARDS.get(host, host)}:{port}"


def variables_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings, given by `section.key`, as environment variables."""
    return {ENVIRONMENT_PREFIX + key.upper().replace(".", "_"): value for key, value in settings.items()}


SINGLE_BROKER: Final = 0
"""Stands for the store of a broker without shards where a number of shards is asked for."""


def shards_in(disk: Disk, root: Path) -> int | None:
    """Return how many shards have stores in a directory, or SINGLE_BROKER; None if there is no store.

    A directory that has both counts as one of shards, which `require_directory_of_shards` refuses. Raises OSError.
    """
    names = [entry.name for entry in disk.list_directory(root)]
    if numbers := _shard_numbers(names):
        return numbers[-1] + 1
    return None if _mark_of_single_broker(root, names) is None else SINGLE_BROKER


def require_directory_of_shards(disk: Disk, root: Path, count: int) -> None:
    """Check that a directory can hold `count` shards, without changing it. Missing stores are made when a shard starts.

    Raises StoreUnusable for the store of a single broker, and where there are more shards than `count`; OSError.
    """
    names = [entry.name for entry in disk.list_directory(root)]
    mark = _mark_of_single_broker(root, names)
    if mark is not None:
        raise NotAStore(
            root,
            f"is the store of a single broker, because it contains {mark}: start it without --shards, or "
            "name another directory for the shards",
        )
    left_out = [number for number in _shard_numbers(names) if number >= count]
    if left_out:
        raise StoreUnusable(
            root,
            f"--shards {count} would leave out {', '.join(map(shard_name, left_out))}: start it with --shards "
            f"{left_out[-1] + 1}, or move away the shards that are not wanted",
        )


def _shard_numbers(names: Sequence[str]) -> list[int]:
    return sorted(number for name in names if (number := parse_shard_name(name)) is not None)


def _mark_of_single_broker(root: Path, names: Sequence[str]) -> str | None:
    paths = StorePaths(root)
    marks = (paths.commit_log.name, paths.quarry.name, paths.restoring.name)
    return next((mark for mark in marks if mark in names), None)
