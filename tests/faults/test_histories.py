"""Random histories of a store against a plain model of what it promised, by Hypothesis: a failure is shown as the
shortest sequence of steps that leads to it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.settings import Durability
from tests.faults.code_paths import CODE_PATHS, CodePath
from tests.faults.disk import PowerCut
from tests.faults.ledger import GROUPS
from tests.faults.machine import SEGMENT_SIZE, Broker, Machine, Sending

TOPICS: Final = ("orders", "bills")
QUEUES: Final = [QueueId("orders", 0), QueueId("orders", 1), QueueId("bills", 0)]
LIGHT: Final = ("%LMQ%a", "%LMQ%b")
READ: Final = [*QUEUES, QueueId(LIGHT[0], 0)]

MakeMachine = Callable[[int, Durability, Path], Machine]
CONSUME_QUEUES: Final[dict[str, MakeMachine]] = {
    "memory": lambda seed, durability, _: Machine(seed, durability),
    "rocksdb": Machine,
    "files": lambda seed, durability, _: Machine(seed, durability, queue_mode=QueueMode.FILE),
    "both": lambda seed, durability, _: Machine(seed, durability, queue_mode=QueueMode.DOUBLE_WRITE),
}
"""Kinds of consume queues of the store. Another implementation is another line."""

sendings = st.lists(
    st.builds(
        Sending,
        st.sampled_from(QUEUES),
        st.sampled_from((10, 600, 5000)),
        st.sampled_from(((), (LIGHT[0],), LIGHT)),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
code_paths = st.sampled_from(CODE_PATHS)


class Histories(RuleBasedStateMachine):
    make: ClassVar[MakeMachine]
    durability: ClassVar[Durability]

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="histories-"))
        self.machine = type(self).make(1, self.durability, self.directory)
        self.broker: Broker | None = None

    @initialize(code_path=code_paths)
    def begin(self, code_path: CodePath) -> None:
        self.machine.code_path = code_path
        self.start()

    def live(self) -> Broker:
        assert self.broker is not None
        return self.broker

    def start(self) -> None:
        self.broker = self.machine.start()
        self.broker.check()
        for name in TOPICS:
            self.broker.create_topic(name)

    @rule(messages=sendings)
    def put(self, messages: Sequence[Sending]) -> None:
        self.live().send(messages)

    @rule(sending=st.builds(Sending, st.sampled_from(QUEUES), st.just(10)), encoded=st.booleans())
    def put_too_large(self, sending: Sending, encoded: bool) -> None:
        self.live().send_too_large(sending, encoded=encoded)

    @rule(begun=st.booleans())
    def flush(self, begun: bool) -> None:
        self.live().flush(begun=begun)

    @rule(between=sendings)
    def flush_while_putting(self, between: Sequence[Sending]) -> None:
        self.live().flush(between, begun=True)

    @rule(between=sendings)
    def flush_queues(self, between: Sequence[Sending]) -> None:
        self.live().flush_queues(between)

    @rule()
    def save_checkpoint(self) -> None:
        self.live().save_checkpoint()

    @rule(
        group=st.sampled_from(GROUPS), queue=st.sampled_from(READ), count=st.integers(1, 5), acknowledged=st.booleans()
    )
    def read(self, group: str, queue: QueueId, count: int, acknowledged: bool) -> None:
        for entry in self.live().receive(group, queue, count):
            if acknowledged:
                self.live().acknowledge(group, queue, QueueOffset(entry.queue_offset))

    @rule(name=st.sampled_from(TOPICS))
    def delete_topic(self, name: str) -> None:
        self.live().delete_topic(name)
        self.live().create_topic(name)

    @rule(segments=st.integers(1, 3))
    def expire(self, segments: int) -> None:
        self.live().expire(segments)

    @rule(code_path=code_paths)
    def stop_and_start(self, code_path: CodePath) -> None:
        self.live().stop()
        self.machine.code_path = code_path
        self.start()
        assert self.live().store.recovery.findings.records == 0

    @rule(code_path=code_paths)
    def make_queues_again(self, code_path: CodePath) -> None:
        """Queues that are made again from the log have the messages that the live ones had."""
        self.live().flush()
        before = self.live().content()
        self.live().stop()
        self.machine.code_path = code_path
        self.broker = self.machine.start(rebuild_queues=True)
        self.broker.check()
        found = self.broker.content()
        assert {queue: entries for queue, entries in found.items() if entries} == {
            queue: entries for queue, entries in before.items() if entries
        }

    @rule(power_loss=st.booleans(), seed=st.integers(0, 1000))
    def crash(self, power_loss: bool, seed: int) -> None:
        self.machine.kernel.chance.seed(seed)
        self.machine.crash(power_loss=power_loss)
        self.start()

    @rule(messages=sendings, step=st.integers(1, 12), power_loss=st.booleans(), begun=st.booleans())
    def crash_while_putting(self, messages: Sequence[Sending], step: int, power_loss: bool, begun: bool) -> None:
        self.machine.kernel.crash_at = self.machine.kernel.steps + step
        with suppress(PowerCut):
            for _ in range(step):
                self.live().send(messages)
                self.live().flush(begun=begun)
        self.machine.crash(power_loss=power_loss)
        self.start()

    @rule(step=st.integers(1, 20), power_loss=st.booleans())
    def crash_and_crash_again_while_starting(self, step: int, power_loss: bool) -> None:
        self.machine.crash(power_loss=True)
        self.machine.kernel.crash_at = self.machine.kernel.steps + step
        with suppress(PowerCut):
            self.machine.start()
        self.machine.crash(power_loss=power_loss)
        self.start()

    @precondition(lambda self: self.broker is not None and self.live().store.messages.appended_up_to > 0)
    @rule()
    def truncate(self) -> None:
        """A power cut takes exactly what was not flushed: the log ends there, the queues may know more."""
        flushed = int(self.live().store.messages.flushed_up_to)
        self.machine.crash(power_loss=False)
        self.machine.ledger.crashed(power_loss=True)
        directory = self.machine.kernel.path("/store/commitlog")
        for entry in self.machine.disk.list_directory(directory):
            if not entry.is_directory and int(entry.name) + SEGMENT_SIZE > flushed:
                self.machine.disk.zero_from(directory / entry.name, max(0, flushed - int(entry.name)))
        self.start()

    @rule()
    def compare(self) -> None:
        self.live().check_live()

    def teardown(self) -> None:
        try:
            if self.broker is not None:
                self.machine.crash(power_loss=True)
                self.start()
        finally:
            self.machine.close()
            shutil.rmtree(self.directory)


def run(queues: str, durability: Durability, *, examples: int, steps: int, derandomize: bool) -> None:
    kind = type("Histories", (Histories,), {"make": staticmethod(CONSUME_QUEUES[queues]), "durability": durability})
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=derandomize,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(kind, settings=wanted)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize(("queues", "examples"), [("memory", 20), ("rocksdb", 2), ("files", 8), ("both", 8)])
def test_histories(queues: str, examples: int, durability: Durability) -> None:
    run(queues, durability, examples=examples, steps=30, derandomize=True)


@pytest.mark.slow
@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize(("queues", "examples"), [("memory", 2000), ("rocksdb", 60), ("files", 500), ("both", 500)])
def test_many_histories(queues: str, examples: int, durability: Durability) -> None:
    run(queues, durability, examples=examples, steps=60, derandomize=False)


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("queues", ["files", "both"])
def test_deleted_messages_stay_away_when_the_process_dies_after_the_last_topic_with_files(
    tmp_path: Path, queues: str, durability: Durability
) -> None:
    """No queue file is left then, and a start takes files that are missing for stolen: it puts all of the log again."""
    machine = CONSUME_QUEUES[queues](1, durability, tmp_path)
    broker = machine.start()
    for name in TOPICS:
        broker.create_topic(name)
    broker.flush_queues([Sending(QueueId(name, 0), 10) for name in TOPICS])
    broker.flush_queues()
    broker.delete_topic("orders")
    broker.stop()
    broker = machine.start()
    broker.delete_topic("bills")
    machine.crash(power_loss=False)
    broker = machine.start()
    broker.check()
    assert broker.content() == {}
    broker.stop()
    machine.close()
