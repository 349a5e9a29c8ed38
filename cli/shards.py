"""`quarry serve --shards N` plans the shards from the settings, and turns this process into their supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from quarry_mq.cli.key_file import make_key_file
from quarry_mq.cli.terminal.progress import is_watched
from quarry_mq.server.front.inherited import has_inherited_sockets
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid
from quarry_mq.server.shards.plan import Shard, cluster_settings, plan_shards, require_directory_of_shards, variables_of
from quarry_mq.server.shards.process import Child, Launch
from quarry_mq.store.fs import PosixDisk

PYTHON: Final = (sys.executable, "-P", "-m")
"""Python without the working directory on its path: modules there are not ours."""


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
