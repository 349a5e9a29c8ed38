"""A sink that deduplicates, while its driver, its executors and the broker are killed: each row is one message."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.broker import PROJECT, Broker, clean_environment, until
from tests.e2e.conftest import StartBroker
from tests.pipeline.streams import latest, rows_between, send, stream

MESSAGES: Final = 1_600
VICTIMS: Final = ("driver", "executor", "task", "broker", "driver")
PATIENCE_S: Final = 240.0
EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class Job:
    """The job and the processes that it starts: they have its session."""

    def __init__(self, broker: Broker, directory: Path, deduplicate: str) -> None:
        self._log = directory / "job.out"
        command = [sys.executable, "-m", "tests.pipeline.sinking_job", "--directory", str(directory)]
        command += ["--endpoint", broker.endpoint, "--admin", broker.admin, "--deduplicate", deduplicate]
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--master", "local-cluster[2,1,600]"],
                cwd=PROJECT,
                env=clean_environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def words(self) -> str:
        return self._log.read_text()[-4_000:]

    def processes(self) -> dict[int, tuple[int, str]]:
        """The parent and the command of each process of the job."""
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    found[int(entry.name)] = int(fields[1]), (entry / "cmdline").read_text()
        return found

    def kill(self, victim: str) -> bool:
        """Kill all processes, one executor, or the Python of one task; return whether there was one."""
        there = self.processes()
        executors = {number for number, (_, command) in there.items() if EXECUTOR in command}
        daemons = {number for number, (parent, _) in there.items() if parent in executors}
        chosen = {
            "driver": list(there),
            "executor": sorted(executors)[:1],
            "task": [number for number, (parent, _) in there.items() if parent in daemons][:1],
        }[victim]
        for number in chosen:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        return bool(chosen)

    def end(self) -> None:
        while self.processes():
            self.kill("driver")
            self.process.poll()
        self.process.wait()


@contextmanager
def jobs(broker: Broker, directory: Path, deduplicate: str) -> Iterator[list[Job]]:
    """Hold the running job as the last of the list."""
    running = [Job(broker, directory, deduplicate)]
    try:
        yield running
    finally:
        running[-1].end()


def rows_of_ended_batches(directory: Path) -> int:
    commits = directory / "checkpoint" / "commits"
    ended = [int(name) for name in os.listdir(commits) if name.isdecimal()] if commits.exists() else []
    if not ended:
        return 0
    [*_, offsets] = (directory / "checkpoint" / "offsets" / str(max(ended))).read_text().splitlines()
    return sum(json.loads(offsets)["orders"].values())


def stored(broker: Broker) -> int:
    reader = stream(broker, "copies", startingOffsets="latest")
    try:
        return sum(reader.initialOffset()["copies"].values())
    finally:
        reader.stop()


def killed_again_and_again(broker: Broker, directory: Path, deduplicate: str = "true") -> list[int]:
    """Kill each victim while a batch is sent; return how many of its messages each driver had sent."""
    chance = random.Random()
    partly: list[int] = []
    with jobs(broker, directory, deduplicate) as running:
        for victim in VICTIMS:
            before = stored(broker)
            enough = before + chance.randrange(20, 250)

            def is_under_way(enough: int = enough) -> bool:
                job = running[-1]
                assert job.process.poll() is None, job.words()
                return stored(broker) >= enough and stored(broker) > rows_of_ended_batches(directory)

            until(is_under_way, "a batch is under way", timeout_s=PATIENCE_S)
            if victim == "broker":
                broker.kill()
                back = threading.Timer(1.0, broker.start)
                back.start()
                back.join()
                continue
            assert running[-1].kill(victim)
            if victim == "driver":
                running[-1].end()
                partly.append(stored(broker) - rows_of_ended_batches(directory))
                running.append(Job(broker, directory, deduplicate))
        assert running[-1].process.wait(PATIENCE_S) == 0, running[-1].words()
    return partly


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_each_row_is_one_message_though_everything_is_killed(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(settings={"index.tiered": True, "store.durability": "sync"})
    for topic in ("orders", "copies"):
        broker.administer("topic", "create", topic, "--queues", "4")
    send(broker, *(f"m{number}" for number in range(MESSAGES)))
    began_s = time.monotonic()
    partly = killed_again_and_again(broker, tmp_path)
    print(f"{time.monotonic() - began_s:.0f} s; {partly} messages of a batch were sent before the driver was killed")
    assert max(partly) > 0, "no kill met a batch in its middle"
    reader = stream(broker, "copies")
    start = reader.initialOffset()
    rows = rows_between(reader, start, latest(reader, start))
    reader.stop()
    assert {row["body"].decode() for row in rows} == {f"m{number}" for number in range(MESSAGES)}, "nothing is lost"
    assert len(rows) == len({row["uniqKey"] for row in rows}) == MESSAGES, "nothing is there twice"
