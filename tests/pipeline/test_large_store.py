"""A store of twenty million messages that a broker's own dispatch has indexed: rebuilt, verified, started, and opened
by RocketMQ.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from bench.scratch_store import QUEUES, TOPIC, make_messages, scratch_store
from quarry_mq.kv import KeyRange
from quarry_mq.pipeline.rebuild import rebuild
from quarry_mq.pipeline.verify import verify
from quarry_mq.store.consumequeue import open_consume_queue_engine
from quarry_mq.store.consumequeue.rocks_layout import ENTRIES_FAMILY, OFFSET_FAMILY
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.layout.kind import inspect_store
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import READ_WRITE, Topic, TopicType
from quarry_mq.store.migration import remove_database
from quarry_mq.store.settings import Durability
from quarry_mq.store.verify import Check
from tests import golden
from tests.compat.rocketmq_store import QueuesIn, digests_of_rocketmq
from tests.conftest import GoldenStore
from tests.pipeline.test_rebuild import open_and_close, without_database

MESSAGES = int(os.environ.get("QUARRY_LARGE_STORE_MESSAGES", "20000000"))
ROUND = 64
TIMEOUT_S = 7200


def write(root: Path, messages: int) -> None:
    random = Random(1)
    with scratch_store(root, Durability.ASYNC) as store:
        store.topics.create(Topic(TOPIC, TopicType.NORMAL, QUEUES, QUEUES, READ_WRITE, {}))
        for begin in range(0, messages, ROUND):
            store.messages.append(make_messages(random, min(ROUND, messages - begin), body_sizes=range(44, 45)))
            store.messages.dispatch(store.messages.appended_up_to)


def digest(root: Path) -> dict[str, tuple[int, str]]:
    """Of each family how many keys it has, and a hash of all keys and values."""
    directory = inspect_store(PosixDisk(), root).rocksdb_directory
    engine = open_consume_queue_engine(directory, create=False, read_only=True)
    found = {}
    try:
        for family in (ENTRIES_FAMILY, OFFSET_FAMILY):
            pairs, sums = 0, hashlib.sha256()
            for key, value in engine.family(family).iterate(KeyRange(b"", None)):
                pairs += 1
                sums.update(key)
                sums.update(value)
            found[family] = (pairs, sums.hexdigest())
    finally:
        engine.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_large_store_is_rebuilt_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    root, disk = tmp_path / "store", PosixDisk()
    write(root, MESSAGES)
    expected = digest(root)
    assert expected[ENTRIES_FAMILY][0] == MESSAGES
    rebuilt = rebuild(spark, disk, root)
    assert rebuilt.queues.entries == MESSAGES
    assert digest(root) == expected
    assert rebuilt.aside is not None
    remove_database(disk, rebuilt.aside)
    report = verify(spark, disk, root)
    assert report.agrees, report.differences
    assert report.counts[Check.RECORDS].checked == MESSAGES
    with scratch_store(root, Durability.ASYNC) as store:
        assert store.recovery.findings.records == 0, "nothing is left to be dispatched"
        max_offsets = [store.messages.bounds(QueueId(TOPIC, number)).maximum for number in range(QUEUES)]
        assert sum(max_offsets) == MESSAGES
    found = digests_of_rocketmq(root, tmp_path, QueuesIn.ROCKSDB, timeout_s=TIMEOUT_S / 2)
    queues = {queue: each for queue, each in found.items() if queue[0] == TOPIC}
    assert [queues[TOPIC, number].maximum for number in range(QUEUES)] == max_offsets
    assert sum(each.units for each in queues.values()) == MESSAGES
    assert not any(each.unreadable for each in queues.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", golden.HALF_SLOW)
def test_a_store_of_rocketmq_that_was_rebuilt_opens_there_again(
    spark: SparkSession, golden_copy: GoldenStore, tmp_path: Path, name: str
) -> None:
    root = golden_copy(name) / "store"
    without_database(root)
    rebuilt = rebuild(spark, PosixDisk(), root)
    # RocketMQ was killed on one of them; on a store that looks so it puts units of light queues twice
    open_and_close(root)
    found = digests_of_rocketmq(root, tmp_path, QueuesIn.ROCKSDB, timeout_s=300)
    ours = {queue: each for queue, each in found.items() if each.units}
    assert sum(each.units for each in ours.values()) == rebuilt.queues.entries
    assert len(ours) == rebuilt.queues.queues
    assert not any(each.unreadable for each in ours.values())
