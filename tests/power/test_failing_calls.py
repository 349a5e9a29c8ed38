"""System calls of a live broker fail, injected by strace: the answer is a refusal in words, never a lost message.

After a failed fdatasync Linux counts the pages as clean and the next one reports success ("fsyncgate"), so one
failure is final until a restart has read the device again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.store.layout.paths import StorePaths, segment_name
from quarry_mq.store.message import PhysicalOffset
from tests.e2e.broker import Broker, until
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client
from tests.power.conftest import MakeBroker
from tests.power.sender import SEGMENT_SIZE, SETTINGS, TOPIC, Sender, all_messages, harvest
from tests.power.tracing import attached, failing, need_strace, under_strace


@pytest.fixture
def broker(tmp_path: Path, make_broker: MakeBroker) -> Broker:
    need_strace()
    return make_broker(tmp_path / "store", SETTINGS)


def test_a_failed_flush_is_final_under_sync(broker: Broker, tmp_path: Path) -> None:
    """Only the first fdatasync fails; the broker must not take the success of a later one for durability."""
    broker.start()
    segment = StorePaths(broker.store).commit_log / segment_name(PhysicalOffset(0))
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(20) == 20
        with attached(broker.pid, failing("fdatasync", error="EIO", when="1", paths=[segment]), tmp_path / "trace"):
            assert sender.send(1) == 0
        assert sender.send(10) == 0
        for refusal in sender.refusals:
            assert refusal.startswith("INTERNAL_SERVER_ERROR: flushing the commit log failed ([Errno 5]")
            assert str(segment.relative_to(broker.store)) in refusal
        assert (tmp_path / "trace").read_text().count("(INJECTED)") == 1
        status, words = broker.get("/readyz")
        assert status == 503
        assert words.startswith("poisoned: flushing the commit log failed ([Errno 5] Input/output error")
        assert broker.get("/healthz")[0] == 200
        assert harvest(client, "readers") == sender.acknowledged, "reads and acknowledgements go on"
    broker.kill()
    broker.start()
    with Client(broker.endpoint) as client:
        assert sender.acknowledged <= harvest(client, "auditors")
        assert sender.acknowledged.isdisjoint(harvest(client, "readers")), "what was consumed stays so"
    broker.stop()


def test_a_failed_flush_is_final_under_async(tmp_path: Path, make_broker: MakeBroker) -> None:
    need_strace()
    broker = make_broker(tmp_path / "store", {**SETTINGS, "store.durability": "async"}).start()
    segment = StorePaths(broker.store).commit_log / segment_name(PhysicalOffset(0))
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(20) == 20
        until(lambda: broker.stat("quarry_flush_duration_seconds_count") >= 1, "a flush")
        with attached(broker.pid, failing("fdatasync", error="EIO", when="1", paths=[segment]), tmp_path / "trace"):
            sender.send(1)
            until(lambda: broker.get("/readyz")[0] == 503, "the failed flush is noticed")
        assert sender.send(10) == 0
        assert harvest(client, "readers") >= sender.acknowledged
    broker.kill()
    broker.start()
    assert sender.acknowledged <= all_messages(broker, "auditors")
    broker.stop()


@pytest.mark.parametrize(
    ("call", "error", "on_directory"),
    [
        ("fallocate", "ENOSPC", False),
        ("fsync", "EIO", True),
        pytest.param("ftruncate", "EIO", False, marks=pytest.mark.slow),
        pytest.param("fallocate", "EIO", False, marks=pytest.mark.slow),
        pytest.param("fsync", "EIO", False, marks=pytest.mark.slow),
    ],
)
def test_a_segment_that_cannot_be_made_refuses_sends_until_it_can(
    call: str, error: str, on_directory: bool, broker: Broker, tmp_path: Path
) -> None:
    """Nothing was written, so nothing is poisoned; nothing half-made is left behind either."""
    broker.start()
    log = StorePaths(broker.store).commit_log
    next_segment = log / segment_name(PhysicalOffset(SEGMENT_SIZE))
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(1) == 1
        options = failing(call, error=error, when="1+", paths=[log if on_directory else next_segment])
        with attached(broker.pid, options, tmp_path / "trace"):
            taken = sender.send(20, size=100_000)
        assert 0 < taken < 15
        assert sender.refusals[0].startswith("TOO_MANY_REQUESTS: the commit log cannot grow: ")
        assert harvest(client, "readers") == sender.acknowledged
        assert sender.send(20, size=100_000) == 20, "it goes on by itself"
        assert broker.get("/readyz") == (200, "ready\n")
        assert harvest(client, "more-readers") == sender.acknowledged
    broker.kill()
    broker.start()
    assert all_messages(broker, "auditors") == sender.acknowledged
    broker.stop()


CALLS: Final = ("fdatasync", "fsync", "fallocate", "ftruncate", "rename", "unlink", "mkdir", "pwrite64")


def calls_of_a_start(broker: Broker, trace: Path) -> Counter[str]:
    """How often a start makes each call, at most by one thread: strace counts so, too."""
    broker.launch(under=["strace", "-D", "--seccomp-bpf", "-f", "-o", str(trace), "-e", f"trace={','.join(CALLS)}"])
    assert broker.ready_or_ended() is None
    broker.kill()
    per_thread: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text().splitlines():
        thread, _, call = line.partition(" ")
        name = call.strip().partition("(")[0]
        if name in CALLS:
            per_thread[thread, name] += 1
    most: Counter[str] = Counter()
    for (_, name), count in per_thread.items():
        most[name] = max(most[name], count)
    return most


def start_with_failures(broker: Broker, pristine: Path, wanted: set[str], cases: Iterator[tuple[str, str]]) -> int:
    """Whatever call of a recovery fails: it ends with one line, or serves; the next start has every message."""
    count = 0
    for call, when in cases:
        count += 1
        shutil.rmtree(broker.store)
        shutil.copytree(pristine, broker.store)
        trace = broker.store.parent / "trace"
        broker.launch(under=under_strace(failing(call, error="EIO", when=when), trace))
        status = broker.ready_or_ended()
        if status is None:
            broker.kill()
        else:
            assert status == 2, f"{call} {when}: status {status}\n{broker.words()}"
        broker.start()
        found = all_messages(broker, "auditors")
        assert wanted <= found, f"{call} {when}: {len(wanted - found)} messages lost"
        broker.kill()
    broker.assert_no_stack_trace()
    return count


@pytest.fixture
def pristine(broker: Broker, tmp_path: Path) -> tuple[Path, set[str]]:
    """A store after `kill -9`, with several segments and flushed queues, and what was acknowledged."""
    broker.start()
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(60, size=100_000) == 60
        assert sender.send(50) == 50
    broker.kill()
    copy = tmp_path / "pristine"
    shutil.copytree(broker.store, copy)
    return copy, sender.acknowledged


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_any_call_of_a_start_may_fail(broker: Broker, pristine: tuple[Path, set[str]], tmp_path: Path) -> None:
    """rmq#9705, rmq#9728: a start that meets an error must not make it worse for the next one."""
    store, wanted = pristine
    counts = calls_of_a_start(broker, tmp_path / "trace")
    print(json.dumps(counts))
    assert counts["fsync"] > 0
    assert counts["rename"] > 0
    once = [(call, str(n)) for call, count in counts.items() for n in range(1, count + 1)]
    ever_after = [(call, f"{max(1, count // 2)}+") for call, count in counts.items()]
    seed = int(os.environ.get("POWER_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"POWER_SEED={seed}")
    chosen = random.Random(seed).sample(once, min(len(once), 40)) + ever_after
    done = start_with_failures(broker, store, wanted, iter(chosen))
    print(f"{done} starts with a failing call, {len(wanted)} messages there after each")


def test_delivery_state_that_cannot_be_written_refuses_and_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    """A hand-out whose row is not written has not happened; what was acknowledged before stays acknowledged."""
    broker.start()
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(100) == 100
        client.subscribe("readers", TOPIC)
        consumed = set(client.receive("readers", TOPIC, invisible_s=1))
        assert consumed
        logs = sorted((broker.store / "quarry").glob("*.log"))
        with attached(broker.pid, failing("write", error="EIO", when="1+", paths=logs), tmp_path / "trace"):
            for _ in range(3):
                with pytest.raises(Refused):
                    client.receive("readers", TOPIC, invisible_s=1)
        status, words = broker.get("/readyz")
        assert status == 503
        assert words.startswith("poisoned: delivery state cannot be written: IO error: While appending to file: ")
        assert sender.send(3) == 3, "the log is whole"
    broker.kill()
    broker.start()
    with Client(broker.endpoint) as client:
        assert harvest(client, "readers") >= sender.acknowledged - consumed
        assert harvest(client, "auditors") == sender.acknowledged
    broker.stop()


def test_queues_whose_flush_fails_end_all_sends_and_lose_nothing(broker: Broker, tmp_path: Path) -> None:
    """RocksDB's own sync of its directory fails in a thread of RocksDB."""
    broker.start()
    queues = broker.store / "consumequeue_rocksdb"
    with Client(broker.endpoint) as client:
        sender = Sender(client)
        assert sender.send(10) == 10
        with attached(broker.pid, failing("fsync", error="EIO", when="1", paths=[queues]), tmp_path / "trace"):
            assert 30 < sender.send(80, size=100_000) < 80
        assert sender.send(3) == 0
        assert "While fsync: a directory: Input/output error; restart the broker to recover" in sender.refusals[0]
        assert broker.get("/readyz")[0] == 503
        assert harvest(client, "readers") == sender.acknowledged
    broker.kill()
    broker.start()
    assert sender.acknowledged <= all_messages(broker, "auditors")
    broker.stop()
