"""`quarry serve` in a process of its own, as users run it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cli.demo import free_ports
from store.settings import Durability

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
PROJECT: Final = Path(__file__).parents[2]


class Quarry:
    """One broker on loopback ports; everything else is as the settings' defaults say. Files lie in `directory`."""

    def __init__(
        self, directory: Path, durability: Durability, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`settings` are more of them, by the names of their environment variables."""
        directory.mkdir()
        self._log = directory / "broker.log"
        listen, admin, http = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.endpoint = listen
        self.admin = admin
        self.http = http
        self.store = directory / "store"
        self._command = [sys.executable, "-m", "cli.main", "serve", "--store", str(self.store)]
        self._command += ["--listen", listen, "--admin", admin, "--http", http]
        # settings that somebody exported would make the figures their own
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("QUARRY_")}
        self._environment |= {"QUARRY_STORE_DURABILITY": durability.value, **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    def start(self) -> None:
        """Returns when it serves. Raises RuntimeError with its words when it ends before, or takes too long."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=PROJECT, env=self._environment, stdout=subprocess.PIPE, stderr=log
            )
        output = self._process.stdout
        assert output is not None
        says_something, _, _ = select.select([output], [], [], START_TIMEOUT_S)
        if not says_something or not output.readline():  # its first line says that it is ready
            raise RuntimeError(f"the broker did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def close(self) -> None:
        """Stop it in good order, or by force when that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
