"""Runs `quarry serve` in its own process, as users run it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from bench import flames
from quarry_mq.cli.demo import NO_REMOTING, free_ports, is_free
from quarry_mq.server.shards.plan import PORT_STEP
from quarry_mq.store.settings import Durability

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
PROJECT: Final = Path(__file__).parents[2]


class Quarry:
    """Run one broker on loopback ports, with default settings otherwise. Files lie in `directory`."""

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        settings: Mapping[str, str] = MappingProxyType({}),
        *,
        has_console: bool = False,
    ) -> None:
        """Prepare the broker. `settings` are further settings, by the names of their environment variables."""
        directory.mkdir()
        self._log = directory / "broker.log"
        listen, admin, http = (f"127.0.0.1:{port}" for port in self._ports())
        self.endpoint = listen
        self.admin = admin
        self.http = http
        self.console = f"127.0.0.1:{free_ports(1)[0]}" if has_console else "off"
        self.store = directory / "store"
        self._python = [sys.executable, "-m"]
        self._arguments = ["serve", "--store", str(self.store)]
        self._arguments += ["--listen", listen, "--admin", admin, "--http", http, "--console", self.console]
        # exported settings of the user would change the results
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("QUARRY_")}
        self._environment |= {**NO_REMOTING, "QUARRY_STORE_DURABILITY": durability.value, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._flame: flames.Flame | None = None

    def _ports(self) -> Sequence[int]:
        return free_ports(3)

    def also(self, **settings: str) -> None:
        """Add settings for the next start, by the names of their variables: those that need the broker's addresses."""
        self._environment |= settings

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def start(self, *, program: Sequence[str] = ("quarry_mq.cli.main",)) -> None:
        """Start the broker, and return when it serves.

        `program` is a module that runs a modified broker, and the arguments before the broker's own. Raises
        RuntimeError with the broker's output when it ends before, or takes too long.
        """
        command = [*self._python, *program, *self._arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=PROJECT, env=self._environment, stdout=subprocess.PIPE, stderr=log, bufsize=0
            )
        output = self._process.stdout
        assert output is not None
        while select.select([output], [], [], START_TIMEOUT_S)[0] and (line := output.readline()):
            if self._says_ready(line):
                self._flame = flames.begin(self.pid)
                return
        raise RuntimeError(f"the broker did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def _says_ready(self, line: bytes) -> bool:  # noqa: ARG002 - a broker's first line says so
        return True

    def close(self) -> None:
        """Stop the broker cleanly, or by force when that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._end_flame()

    def kill(self) -> None:
        """Kill the broker like `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._end_flame()

    def _end_flame(self) -> None:
        flame, self._flame = self._flame, None
        if flame is not None:
            flame.end()


class Shard(NamedTuple):
    """Describe one of several brokers under a supervisor."""

    endpoint: str
    admin: str
    pid: int


class QuarryShards(Quarry):
    """`quarry serve --shards N`: one cluster. `pid` is the supervisor's, the addresses are those of the first shard."""

    def __init__(
        self, directory: Path, count: int, durability: Durability, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Prepare the shards. `settings` are as for a single broker."""
        self._count = count
        super().__init__(directory, durability, settings)
        self._arguments += ["--shards", str(count)]

    def _ports(self) -> Sequence[int]:
        """Return three ports for the first shard; those of the others, a hundred above each, are free as well."""
        while True:
            ports = free_ports(3)
            others = [port + PORT_STEP * number for port in ports for number in range(1, self._count)]
            if len({port % PORT_STEP for port in ports}) == len(ports) and all(map(is_free, others)):
                return ports

    def _says_ready(self, line: bytes) -> bool:
        return line.endswith((b"shards are ready.\n", b"shard is ready.\n"))

    def shards(self) -> list[Shard]:
        """Return the running shards in the order of their ports."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        found = []
        for pid in map(int, children):
            pairs = (pair.partition(b"=") for pair in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            own = {name.decode(): value.decode() for name, _, value in pairs if name.startswith(b"QUARRY_NETWORK_")}
            found.append(Shard(own["QUARRY_NETWORK_LISTEN"], own["QUARRY_NETWORK_ADMIN"], pid))
        return sorted(found)
