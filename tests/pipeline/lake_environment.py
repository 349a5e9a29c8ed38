"""Iceberg for slow tests: a Python of its own, because Iceberg's newest jar is for an older Spark than the tests have.

`~/.cache/quarry-tests` (`E2E_CACHE`) gets a virtual environment with PySpark 4.1 and pyiceberg from the package index,
and the jar from Maven Central. Without Maven or Java the tests are skipped; without a network they fail with the words
of the installer.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from quarry_mq.pipeline.lake.table import RUNTIME
from tests.e2e import languages
from tests.e2e.broker import PROJECT, clean_environment
from tests.schemas import assert_documented

PACKAGES: Final = ("pyspark==4.1.4", "pyiceberg==0.12.0")
TABLE: Final = "lake.db.messages"
TIMEOUT_S: Final = 400
HERE: Final = Path(__file__).parent


class Ran(NamedTuple):
    status: int
    output: str
    errors: str

    @property
    def fields(self) -> dict[str, Any]:
        """Return the result of a command with `--json`."""
        assert self.status in (0, 1), self.errors
        found: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return found


class Iceberg:
    """The class has a warehouse in a folder, and runs commands on it."""

    def __init__(self, python: Path, jar: Path, warehouse: Path) -> None:
        self.python = python
        self.jar = jar
        self.warehouse = warehouse
        catalog = "spark.sql.catalog.lake"
        settings = {
            "spark.jars": jar,
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.type": "hadoop",
            f"{catalog}.warehouse": warehouse,
            "spark.ui.enabled": "false",
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        self.conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    def lake(self, source: object, *options: object, timeout_s: float = TIMEOUT_S) -> Ran:
        """Run `quarry pipeline lake SOURCE TABLE --json`."""
        return self._quarry("lake", source, TABLE, *options, timeout_s=timeout_s)

    @contextmanager
    def following(self, source: object, *options: object, master: str) -> Iterator[subprocess.Popen[str]]:
        """Run `quarry pipeline lake SOURCE TABLE --follow` in a group of processes that is killed with the block."""
        words = ["pipeline", "lake", str(source), TABLE, "--follow", "--interval", "1", *map(str, options)]
        command = [str(self.python), "-m", "quarry_mq.cli.main", *words, "--master", master, *self.conf]
        process = subprocess.Popen(
            command, cwd=PROJECT, env=self.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def maintain(self, *options: object, timeout_s: float = TIMEOUT_S) -> Ran:
        return self._quarry("lake-maintain", TABLE, *options, timeout_s=timeout_s)

    def _quarry(self, *arguments: object, timeout_s: float) -> Ran:
        words = [*map(str, arguments), "--json", "--master", "local[2]"]
        ran = self.run("-m", "quarry_mq.cli.main", "pipeline", *words, *self.conf, timeout_s=timeout_s)
        assert_documented(("pipeline", *words), ran.output)
        return ran

    def run(
        self, *arguments: object, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
    ) -> Ran:
        """Run a program of Python in the environment with Iceberg."""
        done = subprocess.run(
            [self.python, *map(str, arguments)],
            cwd=PROJECT,
            env=self.environment | dict(environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(), "PYTHONPATH": str(PROJECT), "SPARK_LOCAL_IP": "127.0.0.1"}

    def rows(self, table: str = TABLE) -> list[dict[str, Any]]:
        """Return the rows of a table as pyiceberg reads them, sorted by their position; of bodies the digest."""
        ran = self.run(HERE / "lake_reader.py", self.warehouse, table.partition(".")[2])
        assert ran.status == 0, ran.errors
        return [json.loads(line) for line in ran.output.splitlines()]

    def digests(self, timeout_s: float) -> dict[tuple[str, int], tuple[int, str]]:
        """Return the count and the digest of each queue, as pyiceberg reads the table."""
        reader, name = HERE / "lake_reader.py", TABLE.partition(".")[2]
        ran = self.run(reader, self.warehouse, name, "digests", timeout_s=timeout_s)
        assert ran.status == 0, ran.errors
        lines = map(json.loads, ran.output.splitlines())
        return {(line["topic"], line["queueId"]): (line["messages"], line["sha256"]) for line in lines}


def executors(group: int) -> list[int]:
    """Return the processes of a group that are executors of Spark."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                is_executor = b"CoarseGrainedExecutorBackend" in (folder / "cmdline").read_bytes()
                if is_executor and os.getpgid(int(folder.name)) == group:
                    found.append(int(folder.name))
    return found


def iceberg(warehouse: Path) -> Iceberg:
    """Return a warehouse in this folder. What it needs is installed at the first use."""
    languages.need("java", "mvn")
    wanted = " ".join([RUNTIME, *PACKAGES, (PROJECT / "pyproject.toml").read_text()])
    made = languages.installed(f"lake-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}", _install)
    [jar] = (made / "jars").glob("*.jar")
    return Iceberg(made / "python" / "bin" / "python", jar, warehouse)


def _install(folder: Path) -> None:
    copy = ["dependency:copy", f"-Dartifact={RUNTIME}", f"-DoutputDirectory={folder / 'jars'}"]
    languages.run(["mvn", "-q", "-B", *copy], directory=folder)
    languages.run([sys.executable, "-m", "venv", "--without-pip", folder / "python"], directory=folder)
    project = ("-r", str(PROJECT / "pyproject.toml"), "--extra", "pipeline")
    python = ("--python", str(folder / "python" / "bin" / "python"))
    uv = Path(sys.executable).with_name("uv")
    languages.run([uv, "pip", "install", "--quiet", *python, *PACKAGES, *project], directory=folder)
