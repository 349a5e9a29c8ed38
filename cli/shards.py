"""`quarry serve --shards N`: from the settings to the supervisor, which this process becomes."""

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
from quarry_mq.server.shards.launch import Child, Launch
from quarry_mq.server.shards.plan import Shard, cluster_settings, plan_shards, require_directory_of_shards, variables_of
from quarry_mq.store.fs import PosixDisk

PYTHON: Final = (sys.executable, "-P", "-m")
"""Without the working directory on the path: what lies there is not ours."""


def become_supervisor(settings: BrokerSettings, count: int, config: Path | None) -> NoReturn:
    """Replace this process, which has loaded far more than a supervisor needs: the process id stays.

    Raises BrokerError when the shards cannot be started like that, OSError.
    """
    if has_inherited_sockets():
        raise SettingsInvalid("LISTEN_FDS: sockets that are passed on (quarry.socket) cannot be used with --shards")
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
    """What all shards are told beside their own settings, and a single broker is not."""
    common: dict[str, str] = {}
    if settings.log.format == "auto" and is_watched():
        common["log.format"] = "console"  # they write into a pipe, but somebody sits at its other end
    return variables_of(common | _cluster_settings(settings, shards))


def _cluster_settings(settings: BrokerSettings, shards: Sequence[Shard]) -> dict[str, str]:
    """One cluster, with a key of their own unless another one is set."""
    cluster = settings.cluster
    key_file = cluster.key_file
    if key_file is None:
        key_file = settings.store.directory / "cluster.key"
        with suppress(FileExistsError):
            make_key_file(key_file)
    return cluster_settings(shards, key_file=key_file, members=cluster.members)


def _environment(common: dict[str, str], *, replaced: dict[str, str]) -> dict[str, str]:
    """What the supervisor gets: ours, with what is common. A variable is a setting in any case of its letters."""
    given_otherwise = common.keys() | replaced.keys()
    return {name: value for name, value in os.environ.items() if name.upper() not in given_otherwise} | common
