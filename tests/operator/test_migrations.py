"""The operator says how far a pod follows RocketMQ, and orders the cut-over."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lightkube import AsyncClient, KubeConfig
from lightkube.models.core_v1 import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)

from quarry_mq.cli.following.files import Report, State
from quarry_mq.cli.operator import migrations, process
from quarry_mq.cli.operator.kubernetes import MANAGER, Container, Kubernetes, KubernetesFailed, _container
from quarry_mq.cli.operator.migrations import (
    CAUGHT_UP,
    LAG_SLACK,
    ORDER_TIMEOUT_S,
    REPORT,
    SILENT_S,
    TOLD_EVERY_S,
    MigrationReconciler,
)
from quarry_mq.cli.operator.resources import (
    MIGRATION,
    READY,
    SHARD_SET,
    Outcome,
    Resource,
    new_problems,
    status_change,
)
from quarry_mq.cli.operator.shards import STORE
from quarry_mq.protocol.clock import ManualClock, SystemClock
from tests.deploy.manifests import ROOT
from tests.e2e.broker import quarry
from tests.e2e.conftest import StartBroker
from tests.follower.test_followed_store import SEGMENT_SIZE, log_bytes, send_some
from tests.following.fake_master import FakeMaster
from tests.following.test_runs import running, until_reported
from tests.operator.bench import run
from tests.operator.conftest import OpenBench
from tests.operator.definitions import schema_of
from tests.operator.real_api import RealApi
from tests.store.test_deletions import opened

MIB = 1 << 20
BROKER = "rocketmq-0:10911"
RUNS = Container(is_ready=True, waits_for="", failed_at_ms=0, failure="")
NOT_READY = RUNS._replace(is_ready=False)
SETTLED = "the broker has appended records for 30 s"


class FakeKubernetes(Kubernetes):
    """A pod that follows, in memory. Reads its report, and takes the order."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.found: dict[str, Container] = {"follow": RUNS, "broker": NOT_READY}
        self.report: Report | None = Report(state=State.FOLLOWING, broker=BROKER, log_end=90, lag_size=8 * MIB)
        self.is_silent = False
        self.orders: list[str] = []
        self.carry_out: Callable[[], tuple[bool, str]] = self.cut_over
        self.status: dict[str, Any] = {}

    async def containers(self, pod: str) -> Mapping[str, Container]:
        assert pod == "quarry-0"
        return self.found

    async def write_status(self, resource: Resource, change: Mapping[str, Any]) -> Resource:
        self.status |= change["status"]
        return Resource(resource.kind, {**resource.raw, "status": self.status})

    async def run(self, pod: str, command: Sequence[str], *, timeout_s: float) -> tuple[bool, str]:
        assert pod == "quarry-0"
        if command == ("cat", REPORT):
            if self.report is None:
                return False, f"cat: {REPORT}: No such file or directory"
            if not self.is_silent:
                self.report = replace(self.report, at_ms=self._clock.wall_ms())
            return True, self.report.text
        assert self.status["phase"] == "CuttingOver", "people see it before it is over"
        assert timeout_s == ORDER_TIMEOUT_S
        self.orders.append(" ".join(command))
        return self.carry_out()

    def change(self, **changes: Any) -> None:
        assert self.report is not None
        self.report = replace(self.report, **changes)

    def cut_over(self) -> tuple[bool, str]:
        self.change(state=State.CUT_OVER, lag_size=0, refused_s=0.64)
        return True, "the store has the broker's log up to 98, 0 bytes behind"

    def fail(self) -> tuple[bool, str]:
        self.change(failure=SETTLED)
        return False, f"{BROKER}: {SETTLED}"


class Stage:
    """A Migration, whose status is kept from look to look."""

    def __init__(self, **spec: Any) -> None:
        self.clock = ManualClock()
        self.kubernetes = FakeKubernetes(self.clock)
        self.events: list[str] = []
        self.writes = 0
        metadata = {"name": "quarry", "uid": "1", "resourceVersion": "1", "generation": 1}
        self.raw: dict[str, Any] = {"metadata": metadata, "spec": {"pod": "quarry-0", "maxLagBytes": MIB, **spec}}
        self.start_operator()

    def start_operator(self) -> None:
        self.reconciler = MigrationReconciler(self.kubernetes, self.clock)

    @property
    def resource(self) -> Resource:
        return Resource(MIGRATION, {**self.raw, "status": self.kubernetes.status})

    def want(self, **spec: Any) -> None:
        self.raw["spec"] |= spec
        self.raw["metadata"]["generation"] += 1

    def look(self, seconds: float = TOLD_EVERY_S) -> Outcome:
        """Look, after some time."""
        self.clock.advance(seconds)
        resource = self.resource
        outcome = asyncio.run(self.reconciler.reconcile(resource, [resource]))
        self.events += [each.reason for each in (*outcome.notes, *new_problems(resource, outcome.conditions))]
        change = status_change(resource, outcome, datetime.now(UTC)) if outcome.conditions else None
        if change is not None:
            self.writes += 1
            self.kubernetes.status |= change["status"]
        return outcome

    @property
    def phase(self) -> str:
        return str(self.kubernetes.status["phase"])

    def condition(self, kind: str = READY) -> tuple[str, str]:
        found = self.resource.condition(kind)
        return found["status"], found["reason"]

    @property
    def message(self) -> str:
        return str(self.resource.condition(READY)["message"])


def test_a_move_from_its_begin_to_its_end() -> None:
    stage = Stage()
    pod = stage.kubernetes
    assert stage.look().again_s == 5
    assert (stage.phase, stage.condition(), stage.condition(CAUGHT_UP)[0]) == (
        "Following",
        ("False", "Following"),
        "False",
    )
    assert stage.message == f"quarry-0 follows {BROKER}, and lacks 8.0 MiB of its log"
    assert pod.status["behindBytes"] == 8 * MIB
    assert (pod.status["behind"], pod.status["logEnd"], pod.status["broker"]) == ("8.0 MiB", 90, BROKER)
    pod.change(lag_size=MIB)
    stage.look()
    assert (stage.phase, stage.condition(CAUGHT_UP)[0]) == ("CaughtUp", "True")
    assert pod.orders == []

    stage.want(cutOver=True)
    stage.look()
    assert pod.orders == [f"quarry follow {BROKER} --store {STORE} --cut-over"]
    assert stage.phase == "CuttingOver"
    stage.look()
    assert stage.phase == "CuttingOver", "the broker opens the store"
    assert "its broker opens it" in stage.message
    pod.found["broker"] = RUNS
    assert stage.look().again_s is None
    assert (stage.phase, stage.condition()) == ("Served", ("True", "Served"))
    assert pod.status["downtimeSeconds"] == 0.64
    assert "refused messages for 0.6 s" in stage.message
    assert stage.events == ["Following", "CaughtUp", "CuttingOver", "Served"]
    pod.found = {}
    assert stage.look() == Outcome(), "a pod that restarts is no news for a move that is over"
    assert len(pod.orders) == 1


def test_the_cut_over_waits_until_little_is_missing() -> None:
    stage = Stage(cutOver=True, maxLagBytes=900)
    stage.look()
    assert stage.message.endswith("the cut-over begins when it lacks 900 B at most")
    stage.kubernetes.change(lag_size=901)
    stage.look()
    stage.kubernetes.change(lag_size=10, problem="connection refused")
    stage.look()
    assert (stage.phase, stage.condition()) == ("Following", ("False", "BrokerAway"))
    assert "connection refused" in stage.message
    assert stage.kubernetes.orders == []
    stage.kubernetes.change(problem="")
    stage.look()
    assert len(stage.kubernetes.orders) == 1
    assert stage.events == ["Following", "BrokerAway", "CuttingOver"]


def test_load_that_comes_and_goes_is_no_other_phase() -> None:
    stage = Stage()
    stage.kubernetes.change(lag_size=0)
    for lag, phase in ((0, "CaughtUp"), (LAG_SLACK * MIB, "CaughtUp"), (LAG_SLACK * MIB + 1, "Following")):
        stage.kubernetes.change(lag_size=lag)
        stage.look()
        assert stage.phase == phase
    stage.kubernetes.change(lag_size=MIB + 1)
    stage.look()
    assert stage.phase == "Following"
    stage.kubernetes.change(lag_size=0)
    stage.look()
    stage.kubernetes.change(lag_size=MIB + 1)
    stage.want(cutOver=True)
    stage.look()
    assert stage.kubernetes.orders == [], "more is missing than may be"


def test_a_cut_over_that_fails_is_told_in_the_command_s_words_and_repeated_when_that_is_wanted() -> None:
    stage = Stage(cutOver=True)
    pod = stage.kubernetes
    pod.change(lag_size=0)
    pod.carry_out = pod.fail
    for _ in range(3):
        stage.look()
        assert (stage.phase, stage.condition()) == ("Failed", ("False", "CutOverFailed"))
        assert stage.message == f"{SETTLED}; to try again, set spec.cutOver to false and then to true"
    assert len(pod.orders) == 1
    pod.found, containers = {}, pod.found  # its machine is drained
    stage.look()
    assert stage.phase == "Following"
    pod.found = containers
    pod.change(failure="")  # another process
    stage.look()
    assert (stage.condition(), len(pod.orders)) == (("False", "CutOverFailed"), 1)
    assert SETTLED in stage.message
    stage.want(cutOver=False)
    stage.look()
    assert stage.phase == "CaughtUp"
    pod.carry_out = pod.cut_over
    stage.want(cutOver=True)
    stage.look()
    assert stage.phase == "CuttingOver", "what failed before is no failure of this order"
    assert stage.events == ["CutOverFailed", "Following", "CutOverFailed", "CaughtUp", "CuttingOver"]


def test_a_failure_that_nobody_declared_keeps_no_order_back() -> None:
    """Somebody has tried by hand, in vain, before the cut-over was declared."""
    stage = Stage()
    stage.kubernetes.change(lag_size=0, failure=SETTLED)
    stage.look()
    assert stage.phase == "CaughtUp"
    stage.want(cutOver=True)
    stage.look()
    assert len(stage.kubernetes.orders) == 1


def test_an_order_that_cannot_be_given_is_given_again() -> None:
    stage = Stage(cutOver=True)
    pod = stage.kubernetes
    pod.change(lag_size=0, failure="of an attempt by hand")
    pod.carry_out = lambda: (False, "403 Forbidden")
    stage.look()
    stage.look()
    assert stage.condition() == ("False", "NotOrdered")
    assert stage.message == "the cut-over could not be ordered: 403 Forbidden"
    assert len(pod.orders) == 2
    pod.carry_out = pod.cut_over
    stage.look()
    assert stage.phase == "CuttingOver"


def test_an_operator_may_end_at_every_step() -> None:
    stage = Stage(cutOver=True)
    pod = stage.kubernetes
    pod.change(lag_size=0)
    pod.status["phase"] = "CuttingOver"  # it ended before it gave the order
    stage.start_operator()

    def interrupted() -> tuple[bool, str]:
        pod.change(state=State.CUTTING_OVER)
        return False, "the connection was closed"

    pod.carry_out = interrupted
    stage.look()
    assert (stage.phase, len(pod.orders)) == ("CuttingOver", 1)
    for _ in range(2):  # the process goes on with it
        stage.start_operator()
        stage.look(1)
        assert stage.condition() == ("False", "CuttingOver")
    assert len(pod.orders) == 1
    pod.cut_over()
    stage.start_operator()
    stage.look(1)
    pod.found["broker"] = RUNS
    stage.start_operator()
    stage.look(1)
    assert stage.phase == "Served"
    assert len(pod.orders) == 1

    fails = Stage(cutOver=True)
    fails.kubernetes.change(lag_size=0, failure=SETTLED)
    fails.kubernetes.status["phase"] = "CuttingOver"  # it ended while it waited
    fails.look()
    assert (fails.phase, fails.kubernetes.orders) == ("Failed", []), "an order is not repeated by itself"


def test_a_cut_over_by_hand_is_told_like_one_that_was_declared() -> None:
    stage = Stage()
    pod = stage.kubernetes
    pod.change(state=State.CUTTING_OVER)
    stage.look()
    pod.cut_over()
    pod.found["broker"] = RUNS
    stage.look()
    assert stage.phase == "Served"
    assert pod.orders == []


@pytest.mark.parametrize(
    ("found", "report", "phase", "reason", "words"),
    [
        ({}, None, "Following", "Following", "there is no pod quarry-0"),
        ({"broker": RUNS}, None, "Failed", "NotFollowing", "set follow.from in the values of the chart"),
        ({"follow": RUNS}, None, "Following", "Following", "has not reported yet"),
        (
            {"follow": Container(False, "ImagePullBackOff", 0, "")},
            None,
            "Following",
            "NotRunning",
            "does not run: ImagePullBackOff",
        ),
        (
            {"follow": Container(False, "CrashLoopBackOff", 5, f"{BROKER}: Connection refused")},
            None,
            "Failed",
            "FollowFailed",
            f"{BROKER}: Connection refused",
        ),
        (
            {"follow": RUNS},
            Report(state=State.SERVED, broker=BROKER, failure="a broker has served this store"),
            "Failed",
            "NotEmpty",
            "a broker has served this store",
        ),
    ],
)
def test_what_keeps_a_pod_from_following_is_told(
    found: dict[str, Container], report: Report | None, phase: str, reason: str, words: str
) -> None:
    stage = Stage(cutOver=True)
    stage.kubernetes.found, stage.kubernetes.report = found, report
    stage.look()
    assert (stage.phase, stage.condition()) == (phase, ("False", reason))
    assert words in stage.message
    stage.kubernetes.found = {"follow": RUNS}
    stage.kubernetes.report = Report(state=State.FOLLOWING, broker=BROKER)
    stage.look()
    assert stage.phase == "CuttingOver"


def test_a_process_that_failed_after_its_last_report_has_failed() -> None:
    stage = Stage()
    stage.look()
    stage.kubernetes.is_silent = True
    failed = Container(
        False, "CrashLoopBackOff", stage.clock.wall_ms(), "its log ends at 5: begin with an empty directory"
    )
    stage.kubernetes.found["follow"] = failed
    stage.look()
    assert (stage.phase, stage.message) == ("Failed", failed.failure)
    stage.kubernetes.is_silent = False
    stage.look()
    assert stage.phase == "Following"


def test_a_process_that_says_nothing_is_told() -> None:
    stage = Stage()
    stage.kubernetes.is_silent = True
    stage.kubernetes.change(lag_size=0, at_ms=stage.clock.wall_ms())
    stage.look(SILENT_S)
    assert stage.condition() == ("False", "CaughtUp")
    stage.look()
    assert (stage.phase, stage.condition()) == ("Following", ("False", "Silent"))


def test_positions_are_written_now_and_then_and_news_at_once() -> None:
    stage = Stage()
    stage.look()
    for lag in (7, 6, 5):
        stage.kubernetes.change(lag_size=lag * MIB)
        stage.look(3)
    assert stage.writes == 1
    stage.look(3)
    assert (stage.writes, stage.kubernetes.status["behindBytes"]) == (2, 5 * MIB)
    stage.kubernetes.change(problem="connection refused")
    stage.look(1)
    assert stage.writes == 3


def test_the_status_is_what_the_definition_describes() -> None:
    stage = Stage(cutOver=True)
    stage.kubernetes.change(lag_size=0)
    described = schema_of("migrations")["properties"]["status"]["properties"]
    for _ in range(2):
        stage.look()
        assert stage.kubernetes.status.keys() <= described.keys()
        assert stage.phase in described["phase"]["enum"]


def test_the_page_explains_each_phase_and_reason() -> None:
    page, source = (ROOT / "docs" / "operator.md").read_text(), Path(migrations.__file__).read_text()
    section = page.partition("## The release itself")[2].partition("## Rights")[0]
    rows = set(re.findall(r"^\| `([A-Z]\w+)` \|", section.partition("The phases of")[2], flags=re.MULTILINE))
    reasons = set(re.findall(r'"((?:[A-Z][a-z]+)+)"', source))
    assert reasons >= {*migrations.Phase, "BrokerAway"}
    assert rows == reasons


def status(state: ContainerState, before: ContainerState | None = None) -> ContainerStatus:
    return ContainerStatus(
        image="", imageID="", name="follow", ready=False, restartCount=1, state=state, lastState=before
    )


def test_the_last_words_of_a_container_are_read() -> None:
    ended_at = datetime(2026, 1, 2, tzinfo=UTC)
    words = '{"event": "following RocketMQ"}\nstore: its log ends at 5\n'
    failed = ContainerState(terminated=ContainerStateTerminated(exitCode=2, message=words, finishedAt=ended_at))
    killed = ContainerState(terminated=ContainerStateTerminated(exitCode=137, message=words, reason="OOMKilled"))
    stopped = ContainerState(terminated=ContainerStateTerminated(exitCode=0, finishedAt=ended_at))
    runs = ContainerState(running=ContainerStateRunning())
    waits = ContainerState(waiting=ContainerStateWaiting(reason="CrashLoopBackOff"))
    at_ms = int(ended_at.timestamp() * 1000)
    assert _container(status(runs)) == Container(False, "", 0, "")
    assert _container(status(runs, stopped)) == Container(False, "", 0, "")
    assert _container(status(runs, failed)) == Container(False, "", at_ms, "store: its log ends at 5")
    assert _container(status(waits, failed)).waits_for == "CrashLoopBackOff"
    assert _container(status(failed)) == Container(False, "Ended", at_ms, "store: its log ends at 5")
    assert _container(status(waits, killed)).failure == "it was ended with exit status 137 (OOMKilled)"


class LocalPod(FakeKubernetes):
    """A pod whose store lies in a folder of this machine, and whose commands run here."""

    def __init__(self, root: Path) -> None:
        super().__init__(ManualClock())
        self._root = root

    async def run(self, pod: str, command: Sequence[str], *, timeout_s: float) -> tuple[bool, str]:
        words = [each.replace(STORE, str(self._root)) for each in command]
        if words[0] == "cat":
            file = Path(words[1])
            return (True, file.read_text()) if file.exists() else (False, "No such file")
        self.orders.append(" ".join(words))
        done = await asyncio.to_thread(quarry, *words[1:])
        return done.returncode == 0, f"{done.stdout} {done.stderr}"


def test_a_pod_moves_when_it_is_declared(tmp_path: Path, start_broker: StartBroker) -> None:
    """The command, the files in the store and the broker are real."""
    primary, root = opened(tmp_path / "primary"), tmp_path / "store"
    for _ in range(4):
        send_some(primary, Random(5))
    end = primary.messages.appended_up_to
    stage = Stage()
    pod = stage.kubernetes = LocalPod(root)
    stage.reconciler = MigrationReconciler(pod, SystemClock())
    broker = start_broker(store=root, settings={"store.segment_size": SEGMENT_SIZE}, after_cut_over=True)
    with (
        FakeMaster(lambda start, stop: log_bytes(primary, start, stop), lambda: end) as master,
        running(master.port, root, rests=True),
    ):
        until_reported(root, log_end=end, lag_size=0)
        stage.look()
        assert (stage.phase, pod.status["broker"]) == ("CaughtUp", f"127.0.0.1:{master.port}")
        stage.want(cutOver=True)
        stage.look()
        stage.look()
        assert (stage.phase, pod.status["logEnd"]) == ("CuttingOver", end)
        assert broker.ready_or_ended() is None
        pod.found["broker"] = RUNS
        stage.start_operator()
        stage.look()
        assert (stage.phase, len(pod.orders)) == ("Served", 1)
    primary.close()


def test_the_operator_runs_for_shards_and_migrations_too(open_bench: OpenBench, name: str) -> None:
    """A release without pods is told in both statuses, and the operator goes on."""

    async def scenario() -> None:
        async with open_bench() as bench, bench.operating():
            spec = {"shards": 1, "statefulSets": ["quarry"], "selector": {"a": "b"}}
            await bench.declare(SHARD_SET, name, spec)
            await bench.declare(MIGRATION, name, {"pod": "quarry-0"})
            assert "there is no StatefulSet quarry" in await bench.not_ready(SHARD_SET, name, "Waiting")
            assert "there is no pod quarry-0" in await bench.not_ready(MIGRATION, name, "Following")
            await bench.looked(MIGRATION, 2)
            await bench.looked(SHARD_SET, 2)
            await bench.delete(MIGRATION, name)
            await bench.gone(MIGRATION, name)

    run(scenario())


def test_what_the_chart_says_is_written_until_kubernetes_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "RETRY_S", 0.01)
    file = tmp_path / "migration.json"
    for text in ("", "[]", '{"metadata": {"name": "quarry"}}'):
        file.write_text(text)
        with pytest.raises(process.OperatorFailed, match=r"migration.json: it is no Migration as JSON"):
            process.declaration(MIGRATION, file)
    written: list[tuple[object, ...]] = []

    class NotYetServed(FakeKubernetes):
        async def declare(self, *declared: Any) -> None:
            written.append(declared)
            if len(written) < 3:
                raise KubernetesFailed("the definition is not installed")

    file.write_text('{"metadata": {"name": "quarry"}, "spec": {"pod": "quarry-0"}}')
    asyncio.run(process._declare(NotYetServed(ManualClock()), process.declaration(MIGRATION, file)))
    assert written == [(MIGRATION, "quarry", {"pod": "quarry-0"})] * 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cut_over_is_taken_back_only_after_it_failed(real_api: RealApi) -> None:
    def changed(change: object, *options: str, is_refused: bool = False) -> str:
        words = ("patch", "migration", "quarry", "--type=merge", f"--patch={json.dumps(change)}", *options)
        return real_api.kubectl(*words, is_refused=is_refused)

    def phase(name: str) -> None:
        changed({"status": {"phase": name}}, "--subresource=status")

    def declare() -> None:
        """Write what the chart says, as each start of the operator does."""

        async def declared() -> None:
            kubernetes = Kubernetes(
                AsyncClient(KubeConfig.from_file(real_api.kubeconfig()).get(), field_manager=MANAGER)
            )
            await kubernetes.declare(MIGRATION, "quarry", {"pod": "quarry-0"})
            await kubernetes.close()

        asyncio.run(declared())

    declare()
    found = json.loads(real_api.kubectl("get", "migration", "quarry", "--output=json"))
    assert found["spec"] == {"pod": "quarry-0", "cutOver": False, "maxLagBytes": MIB}
    assert "pod cannot be changed" in changed({"spec": {"pod": "quarry-1"}}, is_refused=True)
    phase("CaughtUp")
    changed({"spec": {"cutOver": True}})
    declare()
    assert real_api.kubectl("get", "migration", "quarry", "--output=jsonpath={.spec.cutOver}") == "true"
    for value in (False, None):
        phase("CuttingOver")
        assert "cutOver cannot be taken back" in changed({"spec": {"cutOver": value}}, is_refused=True)
        phase("Failed")
        changed({"spec": {"cutOver": value}})
        changed({"spec": {"cutOver": True}})
    changed({"spec": {"maxLagBytes": 5}})
    assert "Unsupported value" in changed({"status": {"phase": "Done"}}, "--subresource=status", is_refused=True)
    columns = real_api.kubectl("get", "migrations").splitlines()[0].split()
    assert columns == ["NAME", "PHASE", "BEHIND", "READY", "REASON", "AGE"]
