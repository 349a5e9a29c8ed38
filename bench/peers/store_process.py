"""Runs a message store in its own process that executes commands, and measures them: Quarry's or RocketMQ's store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Any, Final

from bench.harness import Sample, cpu_s_of, private_bytes_of
from bench.peers.maven import class_path
from bench.peers.quarry import PROJECT
from bench.peers.rocketmq import JVM

ROCKETMQ_PROJECT: Final = Path(__file__).parent / "rocketmq-store"
HEAP_MAX: Final = "4g"


class StoreKind(Enum):
    """The owner of the store, and where it keeps its consume queues."""

    QUARRY_ROCKSDB = "Quarry, RocksDB"
    QUARRY_FILE = "Quarry, files"
    ROCKETMQ_ROCKSDB = "RocketMQ, RocksDB"
    ROCKETMQ_FILE = "RocketMQ, files"

    @property
    def is_rocketmq(self) -> bool:
        return self in (StoreKind.ROCKETMQ_ROCKSDB, StoreKind.ROCKETMQ_FILE)

    @property
    def is_in_files(self) -> bool:
        return self in (StoreKind.QUARRY_FILE, StoreKind.ROCKETMQ_FILE)


class StoreProcess:
    """Executes commands by `bench.peers.queue_store`, or `QueueStore.java`.

    Its logs lie in `home`.
    """

    def __init__(self, kind: StoreKind, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        mode = "file" if kind.is_in_files else "rocksdb"
        self._errors = home / "errors.txt"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [*_command(kind, home), mode],
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, name: str, **words: object) -> Sample:
        """Run a command and return its sample. Raises RuntimeError with the output of the process when it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        cpu_s, begin_s = cpu_s_of(self._process.pid), time.perf_counter()
        self._process.stdin.write(" ".join([name, *(f"{key}={value}" for key, value in words.items())]) + "\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) and not line.startswith("{"):
            continue  # printed by a library
        wall_s = time.perf_counter() - begin_s
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it has ended"}
        if "error" in answer:
            raise RuntimeError(f"{name} {words}: {answer['error']}: {self._errors.read_text()[-2000:]}")
        if "wall_s" in answer:  # without time that is not the store's
            return Sample(answer["done"], answer["wall_s"], answer["cpu_s"])
        return Sample(answer["done"], wall_s, cpu_s_of(self._process.pid) - cpu_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the process since its begin."""
        return cpu_s_of(self._process.pid)

    @property
    def private_bytes(self) -> int:
        return private_bytes_of(self._process.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _command(kind: StoreKind, home: Path) -> list[str]:
    if not kind.is_rocketmq:
        return [sys.executable, "-m", "bench.peers.queue_store"]
    # RocksDB's library is unpacked at each start, and is left behind when the process is killed
    options = [*JVM, f"-Xmx{HEAP_MAX}", f"-Duser.home={home}", f"-Djava.io.tmpdir={home}"]
    return ["java", *options, "-cp", class_path(ROCKETMQ_PROJECT), "quarry.bench.QueueStore"]
