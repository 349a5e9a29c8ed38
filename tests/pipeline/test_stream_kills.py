"""A streaming job that is killed again and again: what an official client sent lands exactly once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.e2e.broker import PROJECT, Broker, clean_environment, until
from tests.e2e.clients import Outgoing, Producer
from tests.e2e.conftest import StartClients
from tests.pipeline.streams import latest, rows_between, stream

MESSAGES = 1_500
KILLS = 2
PATIENCE_S = 240.0


@contextmanager
def job(broker: Broker, directory: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The job with its JVM and its workers, all of which end with the block."""
    command = [sys.executable, "-m", "tests.pipeline.streaming_job"]
    with (directory / "job.out").open("ab") as output:
        process = subprocess.Popen(
            [*command, "--endpoint", broker.endpoint, "--directory", str(directory), *options],
            cwd=PROJECT,
            env=clean_environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def noted(directory: Path, query: str, what: str) -> int:
    """Batches that Spark has begun (`offsets`) or ended (`commits`)."""
    place = directory / query / what
    return sum(name.isdecimal() for name in os.listdir(place)) if place.exists() else 0


def is_under_way(process: subprocess.Popen[bytes], directory: Path, query: str, landed_min: int) -> bool:
    """Whether some batches have landed, and one of the query has begun and not ended."""
    assert process.poll() is None, words(directory)
    is_in_the_middle = noted(directory, query, "offsets") > noted(directory, query, "commits")
    return is_in_the_middle and noted(directory, "files", "commits") >= landed_min


def words(directory: Path) -> str:
    return (directory / "job.out").read_text()[-4_000:]


def send_slowly(producer: Producer, pause: threading.Event) -> None:
    for begin in range(0, MESSAGES, 10):
        some = [Outgoing("orders", f"m{number}".encode(), keys=(f"k{number}",)) for number in range(begin, begin + 10)]
        producer.send(some)
        pause.wait(0.1)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_every_message_lands_once_though_the_job_is_killed_twice(
    spark: SparkSession, broker: Broker, start_clients: StartClients, tmp_path: Path
) -> None:
    clients = start_clients("python", broker.endpoint)
    producer, pause = clients.producer("orders"), threading.Event()
    sender = threading.Thread(target=send_slowly, args=(producer, pause))
    first = [Outgoing("orders", b"first", keys=("first",))]
    producer.send(first)
    sender.start()
    try:
        for kill in range(KILLS):
            before = noted(tmp_path, "files", "commits")
            victim = ("files", "copies")[kill % 2]
            with job(broker, tmp_path) as process:
                under_way = partial(is_under_way, process, tmp_path, victim, before + 3)
                until(under_way, "a batch is under way", timeout_s=PATIENCE_S)
    finally:
        sender.join()
    with job(broker, tmp_path, "--to-the-end") as process:
        assert process.wait(PATIENCE_S) == 0, words(tmp_path)
    expected = {"first", *(f"m{number}" for number in range(MESSAGES))}

    landed = spark.read.parquet(str(tmp_path / "landed")).select("body", "uniqKey").collect()
    assert len(landed) == len(expected), "nothing twice"
    assert {bytes(row["body"]).decode() for row in landed} == expected, "nothing lost"
    assert len({row["uniqKey"] for row in landed}) == len(expected)

    reader = stream(broker, "copies")
    start = reader.initialOffset()
    copies = rows_between(reader, start, latest(reader, start))
    reader.stop()
    ids = {(row["uniqKey"], row["body"]) for row in copies}
    print(f"{len(copies) - len(ids)} of {len(ids)} messages were sent twice by batches that were run again")
    assert len(ids) == len(expected), "who knows the ids sees each once"
    assert {body.decode() for _, body in ids} == expected
    consumer = clients.simple_consumer("copies", group="billing")
    received = consumer.receive_until(len(copies), timeout_s=120)
    assert {(each.message_id, each.body) for each in received} == ids
    assert broker.administer("group", "list", "--json").count("\n") == 1, "reading made no group"
