"""The format `quarry` by Spark Connect: the session is in a server, and the client has no Java."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import GoldenStore
from tests.pipeline import connect_client
from tests.pipeline.cluster import connect_server
from tests.pipeline.tables import messages, table

TIMEOUT_S = 300


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_client_of_spark_connect_reads_tables_and_streams(golden_store: GoldenStore, tmp_path: Path) -> None:
    root = golden_store("file-clean") / "store"
    with connect_server(tmp_path) as url:
        done = subprocess.run(
            [sys.executable, connect_client.__file__, url, str(root), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    everything = messages(root, columns="topic,queueId")
    assert told == {
        "session": "pyspark.sql.connect.session",
        "messages": Counter(row["topic"] for row in everything),
        "streamed": len(everything),
        "filtered": sum(row["queueId"] == 0 for row in everything),
        "expected": sum(row["queueId"] == 0 for row in everything),
        "queues": len(table(root, table="queues")),
    }
