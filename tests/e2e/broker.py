"""A broker in a process of its own."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from typer.testing import CliRunner

from quarry_mq.cli.demo import NO_REMOTING, free_ports
from quarry_mq.cli.main import app
from tests.schemas import assert_documented

PROJECT: Final = Path(__file__).parents[2]
READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
DISK_OF_THE_TESTS: Final = {"QUARRY_EXPIRY_REFUSE_PERCENT": "100", "QUARRY_EXPIRY_FORCE": "false"}
"""How full the disk is on which tests run is not what they are about, unless they say so."""

NO_CONSOLE: Final = {"QUARRY_NETWORK_CONSOLE": "off"}
"""Brokers of tests would all listen on its one default port."""

SMALL_SEGMENTS: Final = {"QUARRY_STORE_SEGMENT_SIZE": "16MiB"}
"""For a broker that a whole module shares: its directory stays until the run ends, and a log file takes its room at
once.
"""

SETTLE_TIMEOUT_S: Final = 60.0
"""How long a test waits for what a broker does in its own time. Only a failing test waits this long."""

DELIVERED_TIMEOUT_S: Final = 180.0
"""Seconds a test waits for messages. Clients ask for routes every 30 s, and what was in an answer that a client on a
busy machine gave up comes again after its invisible time, 60 s. Only a failing test waits this long.
"""


_one_command = threading.Lock()
"""A command in this process has sys.stdout and os.environ to itself, so commands of several threads take turns."""


def until(condition: Callable[[], bool], what: str, *, timeout_s: float = SETTLE_TIMEOUT_S) -> None:
    """Wait for something that follows from what was done, but not at once: a server sees a closed connection later."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def quarry(
    *arguments: str, environment: Mapping[str, str] | None = None, timeout_s: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end. The caller judges the exit status; what --json prints is held to its schema."""
    done = subprocess.run(
        [sys.executable, "-m", "quarry_mq.cli.main", *arguments],
        cwd=PROJECT,
        env={**clean_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert_documented(arguments, done.stdout)
    return done


class Broker:
    """`quarry serve` on free loopback ports. The addresses stay the same over restarts."""

    def __init__(
        self,
        store: Path,
        *,
        logs: Path,
        environment: Mapping[str, str] | None = None,
        installed: Path | None = None,
        folder: Path = PROJECT,
    ) -> None:
        """`installed` is a program `quarry` to take in place of this checkout's, `folder` where it is started."""
        self.store = store
        self.options: Sequence[str] = ()
        """Options of `quarry serve` besides addresses."""
        self._installed = installed
        self._folder = folder
        messaging, admin, http = free_ports(3)
        self.endpoint = f"127.0.0.1:{messaging}"
        self.admin = f"127.0.0.1:{admin}"
        self.http = f"127.0.0.1:{http}"
        self._environment = {**clean_environment(), **(environment or {})}
        logs.mkdir(parents=True, exist_ok=True)
        self._output = logs / "broker.out"
        self._errors = logs / "broker.err"
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: socket.socket | None = None

    def keep_listening(self) -> None:
        """From now on the messaging port is open whether the broker runs or not, as systemd keeps it."""
        host, _, port = self.endpoint.rpartition(":")
        self._listening = socket.create_server((host, int(port)), backlog=1024)

    @property
    def arguments(self) -> list[str]:
        return [
            "serve",
            *("--store", str(self.store)),
            *("--listen", self.endpoint),
            *("--admin", self.admin),
            *("--http", self.http),
            *self.options,
        ]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def _passing(self) -> Sequence[str]:
        if self._listening is None:
            return ()
        return (sys.executable, str(Path(__file__).with_name("pass_socket.py")), str(self._listening.fileno()))

    def launch(
        self,
        *,
        under: Sequence[str] = (),
        program: str = "quarry_mq.cli.main",
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Start without waiting for anything. `under` goes before the command, such as a tracer; `settings` are for
        this start only.
        """
        assert self._process is None, "the broker runs already"
        words = (sys.executable, "-m", program) if self._installed is None else (str(self._installed),)
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                [*under, *self._passing, *words, *self.arguments],
                pass_fds=() if self._listening is None else (self._listening.fileno(),),
                cwd=self._folder,
                env={**self._environment, **environment_of(settings)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            )

    def start(
        self, *, ready_timeout_s: float = READY_TIMEOUT_S, settings: Mapping[str, object] = MappingProxyType({})
    ) -> Broker:
        """Start and wait until it is ready. Fails with the broker's own words when it ends before."""
        self.launch(settings=settings)
        status = self.ready_or_ended(timeout_s=ready_timeout_s)
        assert status is None, f"the broker ended with status {status}:\n{self.words()}"
        return self

    def ready_or_ended(self, *, timeout_s: float = READY_TIMEOUT_S) -> int | None:
        """Wait until it is ready; returns the status it ended with if it ended instead."""
        assert self._process is not None, "the broker was not started"
        deadline = time.monotonic() + timeout_s
        while not self._answers_ready():
            status = self._process.poll()
            if status is not None:
                self._process = None
                return status
            assert time.monotonic() < deadline, f"not ready after {timeout_s} s:\n{self.words()}"
            time.sleep(0.02)
        return None

    def kill(self) -> None:
        """End it without any warning."""
        assert self._process is not None, "the broker was not started"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(STOP_TIMEOUT_S)
        self._process = None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the broker was not started"
        self._process.send_signal(number)

    def ended(self, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Wait for its end; returns its status."""
        assert self._process is not None, "the broker was not started"
        status = self._process.wait(timeout_s)
        self._process = None
        return status

    def restart(self) -> None:
        """Stop in good order and start again on the same addresses."""
        self.stop()
        self.start()

    def stop(self) -> None:
        """Ask it to end; it must do so with status 0 and without a stack trace in its words."""
        assert self._process is not None, "the broker was not started"
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running {STOP_TIMEOUT_S} s after SIGTERM:\n{self.words()}") from None
        self._process = None
        assert status == 0, f"status {status} after SIGTERM:\n{self.words()}"
        self.assert_no_stack_trace()

    def close(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process is not None:
            self.kill()
        if self._listening is not None:
            self._listening.close()

    def words(self, *, last: int = 4000) -> str:
        """What it wrote lately, for failure messages."""
        return "\n".join(
            path.read_text(errors="replace")[-last:] for path in (self._output, self._errors) if path.exists()
        )

    def assert_no_stack_trace(self) -> None:
        for path in (self._output, self._errors):
            _, trace, words = path.read_text(errors="replace").partition("Traceback (most recent call last)")
            assert not trace, trace + words[:4000]

    def administer(self, *arguments: str) -> str:
        """Run an administration command against this broker; it must succeed. Returns its standard output.

        It runs in this process, as a process of its own takes a second to start. `quarry` has one.
        """
        words = [*arguments, "--admin", self.admin]
        exported = {name: None for name in os.environ if name.startswith("QUARRY_")}
        with _one_command:
            done = CliRunner().invoke(app, words, env=exported)
        assert done.exit_code == 0, f"quarry {' '.join(words)}: {done.output} {done.exception!r}"
        assert_documented(words, done.stdout)
        return done.stdout

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of a page of the HTTP port."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def _answers_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError):
            return False  # not there yet, or it has ended in the middle of its answer

    def resident_kib(self) -> int:
        """Memory it holds now, from the kernel's account."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError(f"no VmRSS of process {self.pid}")

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def stat(self, name: str) -> float:
        """The value of a metric without labels."""
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")


def environment_of(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings by dotted names as the environment spells them: `store.durability` is `QUARRY_STORE_DURABILITY`."""
    return {"QUARRY_" + name.upper().replace(".", "_"): str(value) for name, value in settings.items()}


def clean_environment() -> dict[str, str]:
    """The environment of the tests without settings of Quarry that a developer may have exported."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("QUARRY_")}
    return {**clean, **DISK_OF_THE_TESTS, **NO_CONSOLE, **NO_REMOTING}


def command_line(broker: Broker) -> Sequence[str]:
    """The full command of a second broker on the same store."""
    return [sys.executable, "-m", "quarry_mq.cli.main", *broker.arguments]
