"""A store of RocketMQ's file queues goes over to RocksDB while official clients work on it, and its broker is killed.

rmq#8600: RocketMQ's way from files to RocksDB is a stop, a setting and hope; older messages cannot be read afterwards,
or the broker does not start. Here the store is walked through all phases, there and back and there again, with
`kill -9` at random moments of each. Nothing acknowledged may be lost, no queue may have a gap or another order,
nothing consumed may come back, and no client may see an error that a restart does not explain.

`MIGRATION_SEED` repeats a run with the seed it printed; `MIGRATION_MESSAGES`, `MIGRATION_QUEUES` and `MIGRATION_KILLS`
(in each phase) make the long one smaller or larger.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pytest

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from tests.compat.rocketmq_store import QueuesIn, digests_of_rocketmq
from tests.e2e.broker import Broker, quarry, until
from tests.e2e.clients import ClientProcess, SimpleConsumer
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.ledger import Ledger, Workers, consume, produce
from tests.migration.live.history import History
from tests.migration.live.log_oracle import LogOracle
from tests.migration.live.readers import ARCHIVIST, HistoryReader, read_with_official_client, reset
from tests.migration.live.timeline import Timeline
from tests.migration.live.walk import PATIENCE_S, PHASES, STEP_TIMEOUT_S, Walk, admin_channel

TOPICS_OF: Final = {"python": slice(0, 2), "node": slice(2, 3)}
"""Which of the live topics the clients of a language use. Node.js's gets one: with more, its start may miss the answer
that it then waits for."""
ROCKETMQ_TIMEOUT_S: Final = 1200.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large, and how rough."""

    history: History
    languages: Sequence[str]
    kills: dict[str, int]
    """In each phase on the first way, and in `rocksdb` at the end."""
    quiet_s: float
    """How long each phase is left alone on the second way."""
    moment_max_s: float
    producer_pause_s: float


class Proof:
    """One store, its broker, its clients, and what all of them have seen."""

    def __init__(
        self, plan: Plan, seed: int, store: Path, start_broker: StartBroker, start_clients: StartClients
    ) -> None:
        self.plan = plan
        self.stats: dict[str, object] = {"seed": seed}
        self._start_clients = start_clients
        self._chance = random.Random(seed)
        self.ledger, self.timeline, self._workers = Ledger(), Timeline(), Workers()
        self._processes: list[ClientProcess] = []
        began_s = time.monotonic()
        plan.history.fill(store)
        self.stats["fill_s"] = round(time.monotonic() - began_s, 1)
        self.broker: Broker = start_broker(store=store)
        reader_chance = random.Random(self._chance.randrange(1 << 32))
        self._reader = HistoryReader(self.broker, plan.history, reader_chance, self.ledger)
        self.walk = Walk(
            self.broker,
            self.ledger,
            self.timeline,
            self._chance,
            moment_max_s=plan.moment_max_s,
            tell=self._enter,
        )
        self._archivist = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.abandon()
        for process in self._processes:
            process.kill()  # the shutdown of a client that is about to connect again may fail

    def _enter(self, phase: str) -> None:
        self._reader.phase = phase

    def _start(self) -> SimpleConsumer:
        """The clients, who begin behind what is there; returns the one that reads what is there."""
        self._archived = self.plan.history.topics[-1]
        topics_of = {language: self.plan.history.live_topics[TOPICS_OF[language]] for language in self.plan.languages}
        with admin_channel(self.broker) as channel:
            admin: Any = AdminServiceStub(channel)
            for group in (ARCHIVIST, *topics_of):
                admin.CreateGroup(pb.CreateGroupRequest(name=group))
            for group, topics in topics_of.items():
                for topic in topics:
                    reset(admin, group, topic, None)
        self._workers.start("reader", self._reader.run)
        for language, topics in topics_of.items():
            clients = self._start_clients(language, self.broker.endpoint)
            producer = clients.producer(*topics)
            consumer = clients.simple_consumer(*topics, group=language, await_s=2)
            self._processes += [producer, consumer]
            send = partial(produce, topics=topics, per_call=1, pause_s=self.plan.producer_pause_s)
            self._workers.start("producer", partial(send, producer, language, self.ledger))
            self._workers.start("consumer", partial(consume, consumer, language, self.ledger))
        archivist = self._start_clients("python", self.broker.endpoint).simple_consumer(
            self._archived, group=ARCHIVIST, await_s=2
        )
        self._processes.append(archivist)
        return archivist

    # -- the ways

    def there_with_accidents(self, *, back_to: str) -> None:
        """To the last phase that can be left again, with kills in each, and back step by step."""
        for phase in PHASES[:-1]:
            self.walk.go_to(phase)
            self.look(phase)
            self.walk.suffer(phase, self.plan.kills.get(phase, 0))
        self.walk.go_to(back_to)

    def there_in_peace(self) -> None:
        """All the way, at most with kills where no step leads back."""
        for phase in PHASES[PHASES.index(self.walk.phase()) :]:
            self.walk.go_to(phase)
            if phase == "backfilling":
                self._wait_for_backfill()
            with self.timeline.span(phase):
                time.sleep(self.plan.quiet_s)
                self.look(phase)
        self.walk.suffer("rocksdb", self.plan.kills.get("rocksdb", 0))
        until(lambda: not self.walk.status().removing, "the files are removed", timeout_s=PATIENCE_S)
        assert not (self.broker.store / "consumequeue").exists()

    def _wait_for_backfill(self) -> None:
        """Notes its rate, whatever the kills before have left of it."""
        began_s = time.monotonic()
        first = self.walk.status().backfill
        with self.timeline.span("backfill"):
            while (now := self.walk.status().backfill).done < now.end:
                assert time.monotonic() - began_s < STEP_TIMEOUT_S, now
                time.sleep(0.1)
        seconds = time.monotonic() - began_s
        mib = (now.end - max(first.done, first.log_begin)) / 2**20
        stats = {"seconds": seconds, "mib": mib, "mib_per_s": mib / seconds}
        self.stats["backfill"] = {name: round(stat, 1) for name, stat in stats.items()}

    def look(self, phase: str) -> None:
        """Old history is read, by an official client and by one that minds each place."""
        assert self.walk.phase() == phase
        read_with_official_client(self.broker, self._archivist, self._archived)
        before = self._reader.read[phase]

        def has_read() -> bool:
            return self._reader.read[phase] > before or bool(self.ledger.faults)

        until(has_read, f"history is read in {phase}", timeout_s=PATIENCE_S)

    def pause_for_copy(self, target: Path) -> None:
        """Stop in good order, copy what lies there, go on."""
        with self.timeline.outage("stopped"):
            self.broker.stop()
            copy_store(self.broker.store, target)
            self.broker.start(ready_timeout_s=PATIENCE_S)

    # -- the verdict

    def end(self) -> LogOracle:
        """Let clients finish, stop the broker, and hold everything against the log."""
        self._workers.stop("producer")
        with suppress(AssertionError):
            until(lambda: not self.ledger.undelivered, "all is delivered", timeout_s=PATIENCE_S)
        self._workers.stop("consumer")
        self._workers.stop("reader")
        self.broker.stop()
        self._tell()
        ledger = self.ledger
        assert not ledger.undelivered, f"{len(ledger.undelivered)} never came: {sorted(ledger.undelivered)[:5]}"
        assert not ledger.faults, f"{len(ledger.faults)} faults: {ledger.faults[:5]}"
        unexplained = self.timeline.unexplained(ledger.refusals)
        assert not unexplained, f"{len(unexplained)} refusals without a restart: {unexplained[:5]}"
        oracle = LogOracle(self.broker.store, self.plan.history)
        assert oracle.records == self.plan.history.messages + len(oracle.lived) + oracle.duplicates
        assert ledger.acknowledged <= oracle.lived.keys() <= ledger.attempted
        assert not oracle.disorder, oracle.disorder[:5]
        for who, in_order in ledger.in_order.items():
            assert not (misplaced := oracle.misplaced(in_order)), (who, misplaced[:5])
        verify(self.broker.store)
        return oracle

    def _tell(self) -> None:
        ledger, starts_s = self.ledger, sorted(self.walk.starts_s)
        self.stats |= {
            "kills": dict(self.walk.kills),
            "start_after_kill_s": {"median": starts_s[len(starts_s) // 2], "worst": starts_s[-1]} if starts_s else None,
            "attempted": len(ledger.attempted),
            "acknowledged": len(ledger.acknowledged),
            "delivered": len(ledger.delivered),
            "consumed": len(ledger.consumed_s),
            "delivered_twice": sum(count > 1 for count in ledger.delivered.values()),
            "refused": dict(ledger.refused),
            "history_read": dict(self._reader.read),
            "spans": self.timeline.pauses(ledger.sends),
        }
        print(json.dumps(self.stats, indent=1))


def copy_store(source: Path, target: Path) -> None:
    """Files of queues and of the log are longer than what is written in them."""
    subprocess.run(["cp", "--recursive", "--sparse=always", source, target], check=True)


def verify(store: Path) -> None:
    done = quarry("verify", str(store), timeout_s=ROCKETMQ_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr


def assert_rocketmq_finds_all(store: Path, queues_in: QueuesIn, oracle: LogOracle, scratch: Path) -> None:
    began_s = time.monotonic()
    found = digests_of_rocketmq(store, scratch, queues_in, timeout_s=ROCKETMQ_TIMEOUT_S)
    print(
        f"RocketMQ, {queues_in.value}: {sum(each.units for each in found.values())} units of {len(found)} queues, "
        f"{time.monotonic() - began_s:.0f} s",
        flush=True,
    )
    wanted = oracle.queues()
    assert found.keys() == wanted.keys()
    wrong = [(queue, found[queue], wanted[queue]) for queue in wanted if found[queue] != wanted[queue]]
    assert not wrong, wrong[:3]


def seed_of_this_run() -> int:
    seed = int(os.environ.get("MIGRATION_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"MIGRATION_SEED={seed}", flush=True)
    return seed


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_small_store(tmp_path: Path, start_broker: StartBroker, start_clients: StartClients) -> None:
    seed = seed_of_this_run()
    plan = Plan(
        history=History(messages=20_000, queues=50, segment_size=1 << 20, units_per_file=150),
        languages=("python",),
        kills=dict(Counter(random.Random(seed).sample(PHASES[1:], 2))),
        quiet_s=0.0,
        moment_max_s=1.0,
        producer_pause_s=0.005,
    )
    with Proof(plan, seed, tmp_path / "store", start_broker, start_clients) as proof:
        proof.there_with_accidents(back_to="backfilling")
        proof.there_in_peace()
        proof.end()


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_million_messages(tmp_path: Path, start_broker: StartBroker, start_clients: StartClients) -> None:
    """What comes of it is judged by RocketMQ: in RocksDB, and in files after a way back, online or offline."""
    seed = seed_of_this_run()
    kills = int(os.environ.get("MIGRATION_KILLS", "10"))
    plan = Plan(
        history=History(
            messages=int(os.environ.get("MIGRATION_MESSAGES", "5000000")),
            queues=int(os.environ.get("MIGRATION_QUEUES", "2000")),
            segment_size=64 << 20,
            units_per_file=1000,
        ),
        languages=("python", "node"),
        kills=dict.fromkeys(PHASES, kills),
        quiet_s=10.0,
        moment_max_s=6.0,
        producer_pause_s=0.01,
    )
    store = tmp_path / "store"
    with Proof(plan, seed, store, start_broker, start_clients) as proof:
        proof.there_with_accidents(back_to="file")
        proof.pause_for_copy(tmp_path / "back-online")
        proof.there_in_peace()
        oracle = proof.end()

    online = tmp_path / "back-online"
    verify(online)
    assert_rocketmq_finds_all(online, QueuesIn.FILE, LogOracle(online, plan.history), tmp_path)
    copy_store(store, tmp_path / "in-rocksdb")
    assert_rocketmq_finds_all(tmp_path / "in-rocksdb", QueuesIn.ROCKSDB, oracle, tmp_path)
    done = quarry("migrate", str(store), "--to", "file", "--json", timeout_s=ROCKETMQ_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    verify(store)
    assert_rocketmq_finds_all(store, QueuesIn.FILE, oracle, tmp_path)
