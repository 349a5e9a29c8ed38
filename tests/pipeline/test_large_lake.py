"""A history of twenty million messages in a lake, and the messages that were sent meanwhile, while jobs are killed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from random import Random

import pytest

from bench.scratch_store import TOPIC
from quarry_mq.pipeline.stream.options import Connection
from quarry_mq.protocol.names import is_system_topic
from tests.compat.rocketmq_store import QueuesIn, digests_of_rocketmq
from tests.e2e.conftest import StartBroker
from tests.pipeline.lake_environment import iceberg
from tests.pipeline.test_lake import follow_and_kill, keep_sending, lines_of, restored_backup
from tests.pipeline.test_large_store import write

MESSAGES = int(os.environ.get("QUARRY_LARGE_LAKE_MESSAGES", "20000000"))
BATCH_MIB = int(os.environ.get("QUARRY_LARGE_LAKE_BATCH_MIB", "512"))
KILLS = 3
TIMEOUT_S = 7_200


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_large_history_and_its_live_broker(java: None, start_broker: StartBroker, tmp_path: Path) -> None:
    lake = iceberg(tmp_path / "warehouse")
    random = Random(47)
    write(tmp_path / "store", MESSAGES)
    broker = start_broker(store=tmp_path / "store")
    history = restored_backup(broker, tmp_path)
    client = Connection(endpoint=broker.endpoint).client()
    stop = threading.Event()
    sender = threading.Thread(target=keep_sending, args=(client, stop))
    sender.start()
    try:
        for _ in range(KILLS):
            # killed anywhere in a batch: while tasks write, or while the driver commits
            with lake.following(history, "--batch-mib", BATCH_MIB, master="local[2]") as process:
                lines_of(process, 1)
                time.sleep(random.uniform(0, 3))
        rest = lake.lake(history, "--batch-mib", BATCH_MIB, timeout_s=TIMEOUT_S / 4).fields["messages"]
        assert 0 < rest < MESSAGES
        follow_and_kill(lake, broker, KILLS)
    finally:
        stop.set()
        sender.join()
        client.close()
    assert lake.lake(broker.endpoint, "--admin", broker.admin).fields["expired"] == 0
    broker.stop()
    found = digests_of_rocketmq(broker.store, tmp_path, QueuesIn.ROCKSDB, timeout_s=TIMEOUT_S / 4, of="contents")
    expected = {
        queue: (digest.units, digest.sha256)
        for queue, digest in found.items()
        if digest.units and not is_system_topic(queue[0])
    }
    assert sum(units for (topic, _), (units, _) in expected.items() if topic == TOPIC) == MESSAGES
    assert len({topic for topic, _ in expected}) > 1, "messages were sent meanwhile"
    assert lake.digests(TIMEOUT_S / 4) == expected
    assert lake.maintain("--retention-hours", 0, timeout_s=TIMEOUT_S / 4).fields["rewrittenFiles"] > 0
    assert lake.digests(TIMEOUT_S / 4) == expected
