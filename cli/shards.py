"""`quarry serve --shards` plans the shards from the settings, and turns this process into their supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import structlog

from quarry_mq.cli.doctor.machine import MEMORY_LEAST_BYTES, memory_limits, usable_cores
from quarry_mq.cli.key_file import make_key_file
from quarry_mq.cli.terminal.progress import is_watched
from quarry_mq.server.front.inherited import has_inherited_sockets
from quarry_mq.server.observability.logs import configure_logs
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid
from quarry_mq.server.shards.plan import (
    SINGLE_BROKER,
    Shard,
    cluster_settings,
    plan_shards,
    require_directory_of_shards,
    shards_in,
    variables_of,
)
from quarry_mq.server.shards.process import SHARDS_MAX, Child, Launch
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.paths import shard_name

log = structlog.get_logger(__name__)

CORES_PER_SPARE_CORE: Final = 5
"""Every fifth core gets no shard: a shard at its limit keeps a core and up to a quarter busy (docs/scaling.md)."""

PYTHON: Final = (sys.executable, "-P", "-m")
"""Python without the working directory on its path: modules there are not ours."""


def suitable_shards(*, cores: int, memory_bytes: int | None) -> int:
    """Return how many shards suit a machine; a single broker is one. `memory_bytes` is None if it is unknown."""
    of_memory = SHARDS_MAX if memory_bytes is None else memory_bytes // MEMORY_LEAST_BYTES
    return max(1, min(cores - cores // CORES_PER_SPARE_CORE, of_memory, SHARDS_MAX))


def choose_shards(settings: BrokerSettings, root: Path = Path("/")) -> int | None:
    """Return how many shards `--shards auto` runs, and log why; None for a broker without shards.

    Existing stores decide: the messages of a shard that did not run would be missing, and a new shard could not be
    removed before it was drained. `root` has the kernel's files on the machine. Raises OSError.
    """
    cores, memory_bytes = usable_cores(root), min((size for _, size in memory_limits(root)), default=None)
    suitable = suitable_shards(cores=cores, memory_bytes=memory_bytes)
    directory = settings.store.directory
    there = shards_in(PosixDisk(), directory)
    shards = suitable if there is None else max(there, 1)
    configure_logs(settings.log.format, settings.log.level)
    if shards == suitable:
        log.info("as many shards run as suit the machine", shards=shards, cores=cores, memory_bytes=memory_bytes)
    else:
        move = f"stop it, move the store to {directory / shard_name(0)}, and " if there == SINGLE_BROKER else ""
        log.warning(
            "the stores that are there decide how many shards run",
            shards=shards,
            suitable=suitable,
            cores=cores,
            memory_bytes=memory_bytes,
            advice=f"to have more, {move}start it with --shards {suitable}" if suitable > shards else None,
        )
    is_single = there == SINGLE_BROKER or (there is None and shards == 1)
    return None if is_single else shards


def become_supervisor(settings: BrokerSettings, count: int, config: Path | None) -> NoReturn:
    """Replace this process by the supervisor: the process id stays, and the many modules loaded here are not needed.

    Raises BrokerError when the shards cannot be started with these settings, OSError.
    """
    if has_inherited_sockets():
        raise SettingsInvalid("LISTEN_FDS: socket activation (quarry.socket) cannot be used with --shards")
    shards = plan_shards(settings, count)
    root = settings.store.directory
    require_directory_of_shards(PosixDisk(), root, count)
    PosixDisk().make_directories(root)
    launch = Launch(
        command=[*PYTHON, "quarry_mq.cli.main", "serve", *(() if config is None else ("--config", str(config)))],
        children=[Child(shard.name, shard.variables, shard.kept_open) for shard in shards],
        log_format=settings.log.format,
        log_level=settings.log.level,
    )
    environment = _environment(_common_variables(settings, shards), replaced=shards[0].variables)
    os.execve(sys.executable, [*PYTHON, "quarry_mq.server.shards", launch.to_text()], environment)


def _common_variables(settings: BrokerSettings, shards: Sequence[Shard]) -> dict[str, str]:
    """Return the variables that all shards get besides their own settings, and that a single broker does not get."""
    common: dict[str, str] = {}
    if settings.log.format == "auto" and is_watched():
        common["log.format"] = "console"  # they write into a pipe, but a person reads its other end
    return variables_of(common | _cluster_settings(settings, shards))


def _cluster_settings(settings: BrokerSettings, shards: Sequence[Shard]) -> dict[str, str]:
    """Return the settings that make the shards one cluster, with a generated key unless a key file is set."""
    cluster = settings.cluster
    key_file = cluster.key_file
    if key_file is None:
        key_file = settings.store.directory / "cluster.key"
        with suppress(FileExistsError):
            make_key_file(key_file)
    return cluster_settings(shards, key_file=key_file, members=cluster.members)


def _environment(common: dict[str, str], *, replaced: dict[str, str]) -> dict[str, str]:
    """Return the supervisor's environment: ours with the common variables.

    A setting's variable may have any letter case.
    """
    given_otherwise = common.keys() | replaced.keys()
    return {name: value for name, value in os.environ.items() if name.upper() not in given_otherwise} | common
