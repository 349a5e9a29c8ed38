"""A supervisor in a process of its own, with brokers or with small programs in their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from quarry_mq.cli.demo import free_ports, is_free
from quarry_mq.server.shards.process import Child, Launch
from tests.e2e.broker import PROJECT, clean_environment, quarry, until

STOP_TIMEOUT_S: Final = 30.0


class Supervisor:
    """Its standard output and error go to files, or to a descriptor that is given."""

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        output: int | None = None,
    ) -> None:
        self._output, self._errors = directory / "supervisor.out", directory / "supervisor.err"
        with self._output.open("wb") as file, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                cwd=PROJECT,
                env={**clean_environment(), **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=file if output is None else output,
                stderr=errors if output is None else output,
            )

    @property
    def output(self) -> list[str]:
        return self._output.read_text(errors="replace").splitlines()

    @property
    def errors(self) -> list[str]:
        return self._errors.read_text(errors="replace").splitlines()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Lines of its own log, once they are whole."""
        lines = [json.loads(line) for line in self.errors if line.startswith("{") and line.endswith("}")]
        return [line for line in lines if line["event"] == name]

    def process_of(self, shard: str) -> int:
        """The process id that this shard got last."""
        ids: list[int] = [event["process"] for event in self.events("a shard was started") if event["shard"] == shard]
        return ids[-1]

    def until_said(self, line: str, times: int = 1) -> None:
        def said() -> bool:
            has_ended = self.process.poll() is not None
            is_said = (self.output + self.errors).count(line) >= times
            assert is_said or not has_ended, self.words()
            return is_said

        until(said, line)

    def tell(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        return self.process.wait(STOP_TIMEOUT_S)

    def words(self) -> str:
        return "\n".join([*self.output, *self.errors])[-4000:]

    def close(self) -> None:
        """Its children end with it."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)


def arguments_of(*scripts: str, kept_open: Sequence[str] = ()) -> list[str]:
    """Each shard runs one of the scripts (sh), in place of a broker; the first has ports that are kept open."""
    launch = Launch(
        command=["sh", "-c", 'eval "$SCRIPT"'],
        children=[
            Child(f"shard-{number}", {"SCRIPT": script, **addresses(number)}, () if number else kept_open)
            for number, script in enumerate(scripts)
        ],
        log_format="json",
        log_level="info",
    )
    return ["quarry_mq.server.shards", launch.to_text()]


def addresses(number: int) -> dict[str, str]:
    names = ("NETWORK_LISTEN", "NETWORK_ADMIN", "NETWORK_HTTP", "NETWORK_CONSOLE", "STORE_DIRECTORY")
    return {f"QUARRY_{name}": f"{name.lower()}-{number}" for name in names}


def flags(store: Path, ports: Sequence[int]) -> list[str]:
    names = ("--listen", "--admin", "--http")
    addresses = [each for name, port in zip(names, ports, strict=True) for each in (name, f"127.0.0.1:{port}")]
    return ["--store", str(store), *addresses]


def ports_of_two_shards(count: int = 3) -> list[int]:
    """Return ports for the first shard; those of the second, a hundred above, were free as well."""
    while True:
        ports = free_ports(count)
        if len({port % 100 for port in ports}) == count and all(is_free(port + 100) for port in ports):
            return ports


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def reachable(admin: int) -> list[str]:
    listed = quarry("cluster", "members", "--json", "--admin", f"127.0.0.1:{admin}").stdout.splitlines()
    return [each["name"] for each in map(json.loads, listed) if each["reachable"]]
