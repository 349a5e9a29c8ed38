"""An operator who takes a broker through the phases, and an accident that ends its process again and again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import grpc

from quarry_mq.protocol.proto.quarry.admin.v1 import migration_pb2
from quarry_mq.protocol.proto.quarry.admin.v1.migration_pb2_grpc import MigrationServiceStub
from tests.e2e.broker import PROJECT, Broker, clean_environment, quarry, until
from tests.e2e.ledger import Ledger
from tests.migration.live.timeline import Timeline

PHASES: Final = ("file", "double_write", "backfilling", "verified", "reading_rocksdb", "rocksdb")
STEP_TIMEOUT_S: Final = 900.0
PATIENCE_S: Final = 300.0
"""For a broker on a large store to be ready, and for clients to find it again. Only a failing test waits this long."""
KILL_WHILE_STARTING: Final = 0.2


class Walk:
    def __init__(
        self,
        broker: Broker,
        ledger: Ledger,
        timeline: Timeline,
        chance: random.Random,
        *,
        moment_max_s: float,
        tell: Callable[[str], None],
    ) -> None:
        """`moment_max_s` is how long the broker lives at most before it is killed; `tell` hears of each new phase."""
        self._broker = broker
        self._ledger = ledger
        self._timeline = timeline
        self._chance = chance
        self._moment_max_s = moment_max_s
        self._tell = tell
        self.kills: Counter[str] = Counter()
        """By phase and by what was asked for at the time."""
        self.starts_s: list[float] = []
        """How long the starts after kills took until the broker was ready."""

    def status(self) -> migration_pb2.Migration:
        with admin_channel(self._broker) as channel:
            stub: Any = MigrationServiceStub(channel)
            found: migration_pb2.Migration = stub.GetMigration(migration_pb2.GetMigrationRequest(), timeout=60)
        return found

    def phase(self) -> str:
        return self.status().phase

    # -- steps

    def advance(self) -> str:
        return self._step("advance", "--wait")

    def roll_back(self) -> str:
        return self._step("rollback")

    def _step(self, *command: str) -> str:
        began_s = time.monotonic()
        done = quarry("migration", *command, "--json", "--admin", self._broker.admin, timeout_s=STEP_TIMEOUT_S)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        phase = json.loads(done.stdout)["phase"]
        assert isinstance(phase, str)
        print(f"{' '.join(command)}: {phase} after {time.monotonic() - began_s:.1f} s", flush=True)
        self._tell(phase)
        return phase

    def go_to(self, target: str) -> None:
        """Step by step, each of which must lead where it should."""
        at = PHASES.index(self.phase())
        goal = PHASES.index(target)
        while at != goal:
            forwards = at < goal
            with self._timeline.span(f"{PHASES[at]} {'advance' if forwards else 'rollback'}"):
                phase = self.advance() if forwards else self.roll_back()
            at += 1 if forwards else -1
            assert phase == PHASES[at]
        assert self.phase() == target

    # -- accidents

    def suffer(self, phase: str, kills: int) -> None:
        """Kill the broker at random moments, also amid steps, and bring it back to the phase each time."""
        for number in range(kills):
            self._until_clients_go_on()
            command = self._command(phase, last=number == kills - 1)
            self.kills[f"{phase}: {command or 'nothing'}"] += 1
            operator = self._begin(command) if command else None
            time.sleep(self._chance.uniform(0.0, self._moment_max_s))
            self._kill_and_start(phase)
            if operator is not None:
                operator.wait(STEP_TIMEOUT_S)
            found = self.phase()
            at = PHASES.index(phase)
            assert found in PHASES[max(0, at - 1) : at + 2], f"killed in {phase}, the broker stands in {found}"
            self._tell(found)
            self.go_to(phase)

    def _command(self, phase: str, *, last: bool) -> str | None:
        """No step is asked for that cannot be taken back."""
        at = PHASES.index(phase)
        possible: list[str | None] = [None]
        if 0 < at < len(PHASES) - 1:
            possible.append("rollback")
        if at < len(PHASES) - 2:
            possible.append("advance")
        return self._chance.choice(possible)

    def _begin(self, command: str) -> subprocess.Popen[bytes]:
        """The operator's command line, which is to see the broker die."""
        wait = ["--wait"] if command == "advance" else []
        return subprocess.Popen(
            [sys.executable, "-m", "quarry_mq.cli.main", "migration", command, *wait, "--admin", self._broker.admin],
            cwd=PROJECT,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _kill_and_start(self, phase: str) -> None:
        with self._timeline.outage(f"killed in {phase}"):
            self._broker.kill()
            while self._chance.random() < KILL_WHILE_STARTING:
                self.kills[f"{phase}: starting"] += 1
                self._broker.launch()
                time.sleep(self._chance.uniform(0.1, 1.0))
                self._broker.kill()
            began_s = time.monotonic()
            self._broker.start(ready_timeout_s=PATIENCE_S)
            self.starts_s.append(time.monotonic() - began_s)

    def _until_clients_go_on(self) -> None:
        sent, consumed = len(self._ledger.acknowledged), len(self._ledger.consumed_s)
        until(lambda: len(self._ledger.acknowledged) > sent, "a send is acknowledged", timeout_s=PATIENCE_S)
        until(lambda: len(self._ledger.consumed_s) > consumed, "a delivery is acknowledged", timeout_s=PATIENCE_S)


def admin_channel(broker: Broker) -> Any:
    """A connection of its own: one that is shared still waits after a failure when the broker is there again."""
    return grpc.insecure_channel(broker.admin, options=[("grpc.use_local_subchannel_pool", 1)])
