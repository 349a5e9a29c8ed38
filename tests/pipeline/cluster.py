"""A standalone cluster of Spark: a master and workers as processes on the loopback device, with the scripts of PySpark.

Jobs run on it as `quarry pipeline …`, or as `spark-submit` runs them, in processes of their own: a process has one
Spark, and that of the tests is another.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from quarry_mq.cli.pipeline import submit
from tests.cli.spark_runner import SPARK_HOME

CORES: Final = 1
"""Of a worker, and of the executor that an application has on it."""
START_TIMEOUT_S: Final = 120
JOB_TIMEOUT_S: Final = 300
STOP_TIMEOUT_S: Final = 30
_ADDRESS: Final = re.compile(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")
_CONNECTED: Final = re.compile(r"Spark Connect server started at: \S*:(\d+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")


class Ran(NamedTuple):
    """How a job ended. `workers` are the numbers of those that ran tasks of it."""

    status: int
    output: str
    errors: str
    workers: set[int]


class Cluster:
    """Jobs on the workers whose folders are given."""

    def __init__(self, url: str, folder: Path, work_folders: list[Path]) -> None:
        self.url = url
        self._events = folder / "events"
        self._events.mkdir()
        self._work_folders = work_folders
        cores = len(work_folders) * CORES
        settings = {
            "spark.cores.max": cores,
            "spark.executor.cores": CORES,
            "spark.executor.memory": "512m",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": cores * 2,
            # no task before each worker can have one, and none waits for the worker that has its data
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{START_TIMEOUT_S}s",
            "spark.locality.wait": "0s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self._events.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        self._options = [word for each in settings.items() for word in ("--conf", "=".join(map(str, each)))]

    def quarry(self, *arguments: object) -> Ran:
        """`quarry pipeline` with these arguments."""
        command = [sys.executable, "-m", "quarry_mq.cli.main", "pipeline", *map(str, arguments)]
        return self._run([*command, "--master", self.url, *self._options])

    def spark_submit(self, *arguments: object) -> Ran:
        """The same by `spark-submit`."""
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, *self._options]
        return self._run([*command, submit.__file__, *map(str, arguments)])

    def _run(self, command: list[str]) -> Ran:
        before = set(self._events.iterdir())
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
        )
        logs = set(self._events.iterdir()) - before
        workers = set().union(*map(self._workers_in, logs))
        return Ran(done.returncode, done.stdout, done.stderr, workers)

    def _workers_in(self, log: Path) -> set[int]:
        """The workers with a folder of an executor that ended a task well."""
        executors = set()
        for line in log.read_text().splitlines():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                executors.add(event["Task Info"]["Executor ID"])
        application = log.name.removesuffix(".inprogress")
        return {
            number
            for number, folder in enumerate(self._work_folders)
            if any((folder / application / executor).is_dir() for executor in executors)
        }


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that lives while the block runs; its logs and the folders of its workers lie in `folder`."""
    with ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(_daemon(log, "master.Master", "--port", "0"))
        url = _told(log, _ADDRESS)
        work_folders = [folder / f"worker-{number}" for number in range(workers)]
        logs = [work.with_suffix(".log") for work in work_folders]
        for work, log in zip(work_folders, logs, strict=True):
            sizes = ("--cores", str(CORES), "--memory", "1g")
            stack.enter_context(_daemon(log, "worker.Worker", *sizes, "--work-dir", str(work), url))
        for log in logs:
            _told(log, _REGISTERED)
        yield Cluster(url, folder, work_folders)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A server of Spark Connect that lives while the block runs; yields its address."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": 0,
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": "false",
    }
    options = [word for each in settings.items() for word in ("--conf", "=".join(map(str, each)))]
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal")
    log = folder / "connect.log"
    with _process(log, "spark-submit", "--master", "local[2]", *options, *server):
        yield f"sc://127.0.0.1:{_told(log, _CONNECTED)}"


@contextmanager
def _daemon(log: Path, name: str, *arguments: str) -> Iterator[None]:
    """A master or worker."""
    words = (f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--webui-port", "0", *arguments)
    with _process(log, "spark-class", *words):
        yield


@contextmanager
def _process(log: Path, program: str, *arguments: str) -> Iterator[None]:
    """A program of Spark, which ends with the block together with what it started."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / program), *arguments],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        finally:
            # the group is ours alone: what is left in it are executors that did not end by themselves
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_TIMEOUT_S)


def _told(log: Path, pattern: re.Pattern[str]) -> str:
    """What a process says in its log, as soon as it does: the first group, or all of it."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = pattern.search(log.read_text(errors="replace"))
        if found:
            return found[found.lastindex or 0]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} does not say {pattern.pattern!r}:\n{log.read_text(errors='replace')[-4000:]}")


def _environment() -> dict[str, str]:
    """Everything listens on the loopback device, and runs the Python that runs the tests."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "1g",
        "PYSPARK_PYTHON": sys.executable,
    }
