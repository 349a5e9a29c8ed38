"""The operator leads clients to the primary of each shard, promotes copies, and changes the number of shards."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.message import Message

from quarry_mq.cli.operator.broker import Broker, BrokerAway
from quarry_mq.cli.operator.kubernetes import Kubernetes, Pod
from quarry_mq.cli.operator.resources import READY, SHARD_SET, Outcome, Resource, status_change
from quarry_mq.cli.operator.shards import TOLD_EVERY_S, Answer, ShardReconciler, Wanted
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2, members_pb2, overview_pb2, storage_pb2

SELECTOR = {"app.kubernetes.io/component": "broker"}


def primary(term: int = 1, *, serves: bool = True) -> Answer:
    return Answer(serves, {"role": "primary", "term": term, "serving": serves})


def copy(
    *, connected: bool = True, seeding: bool = False, term: int = 1, silent_s: float | None = 0, **more: Any
) -> Answer:
    document = {"role": "copy", "term": term, "connected": connected, "seeding": seeding, "primary": "quarry-0"}
    heard = {"atMs": 900_000, "heardAtMs": None if silent_s is None else int(900_000 - 1_000 * silent_s)}
    missing = {"missingBytes": 7_000, "missingChanges": 3, "lagSeconds": 0.25, "logEnd": 9, **heard}
    return Answer(connected and not seeding, {**document, **missing, **more})


STARTING = Answer(False, {"role": "starting", "state": "starting"})


class FakeKubernetes(Kubernetes):
    """Stateful sets and their pods, in memory."""

    def __init__(self, *sets: str, replicas: int = 1) -> None:
        self.sets = dict.fromkeys(sets, replicas)
        self.labels: dict[str, str] = {}
        self.commands: list[tuple[str, str]] = []
        self.run_ends: tuple[bool, str] = (True, "")

    async def pods(self, labels: Mapping[str, str]) -> Sequence[Pod]:
        assert labels == SELECTOR
        names = [f"{name}-{number}" for name, replicas in self.sets.items() for number in range(replicas)]
        return [Pod(each, "10.0.0.1", self.labels.get(each, "")) for each in [*names, "quarry-operator-x"]]

    async def label_pod(self, name: str, role: str) -> None:
        self.labels[name] = role

    async def run(self, pod: str, command: Sequence[str], *, timeout_s: float) -> tuple[bool, str]:
        self.commands.append((pod, " ".join(command)))
        return self.run_ends

    async def replicas(self, stateful_set: str) -> int | None:
        return self.sets.get(stateful_set)

    async def scale(self, stateful_set: str, replicas: int) -> None:
        self.sets[stateful_set] = replicas


class FakeBroker(Broker):
    """The members of a cluster, and what is on each of them."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.away: set[str] = set()
        self.ready = 0
        self.timers = 0
        self.is_away = False

    async def call(self, method: str, request: Message) -> Any:
        if self.is_away:
            raise BrokerAway("the broker cannot be asked now: refused")
        match request:
            case members_pb2.ListMembersRequest():
                return members_pb2.ListMembersResponse(
                    members=[
                        members_pb2.Member(name=name, state=state, is_reachable=name not in self.away)
                        for name, state in self.states.items()
                    ]
                )
            case members_pb2.DrainMemberRequest():
                self.states[request.name] = "draining"
            case members_pb2.ActivateMemberRequest():
                self.states[request.name] = "active"
            case members_pb2.RemoveMemberRequest():
                assert request.name in self.away, "a member that is reachable is not removed"
                del self.states[request.name]
            case _:
                raise AssertionError(method)
        return None

    async def of_member(self, member: str, method: str, request: Message, answer: Any) -> Any:
        if answer is overview_pb2.ListGroupFiguresResponse:
            assert isinstance(request, overview_pb2.ListGroupFiguresRequest)
            if not request.after:
                return answer(groups=[figures("a", 0)], has_more=True)
            return answer(groups=[figures("b", self.ready)])
        return storage_pb2.ListPendingResponse(timers=self.timers, transactions=0)


def figures(group: str, ready: int) -> overview_pb2.GroupFigures:
    return overview_pb2.GroupFigures(group=admin_pb2.Group(name=group), ready=ready, in_flight=0)


class Stage:
    """A ShardSet, whose status is kept from look to look, and the pods' answers."""

    def __init__(self, *sets: str, shards: int = 1, replicas: int | None = None, **promotion: int) -> None:
        self.kubernetes = FakeKubernetes(*sets, replicas=shards if replicas is None else replicas)
        self.broker = FakeBroker()
        self.clock = ManualClock()
        self.answers: dict[str, Answer] = {}
        self.writes = 0
        self.reconciler = ShardReconciler(self.broker, self.kubernetes, self.clock, self._ask)
        spec = {"shards": shards, "statefulSets": list(sets), "selector": SELECTOR, "promotion": promotion}
        metadata = {"name": "quarry", "uid": "1", "resourceVersion": "1", "generation": 1}
        self.resource = Resource(SHARD_SET, {"metadata": metadata, "spec": spec})

    async def _ask(self, pod: Pod, wanted: Wanted) -> Answer | None:
        assert wanted.selector == SELECTOR
        return self.answers.get(pod.name)

    def want(self, shards: int) -> None:
        raw = self.resource.raw
        self.resource = Resource(SHARD_SET, {**raw, "spec": {**raw["spec"], "shards": shards}})

    def look(self) -> Outcome:
        outcome = asyncio.run(self.reconciler.reconcile(self.resource, [self.resource]))
        change = status_change(self.resource, outcome, datetime.now(UTC))
        self.writes += change is not None
        if change is not None:
            raw = self.resource.raw
            self.resource = Resource(SHARD_SET, {**raw, "status": {**self.resource.status, **change["status"]}})
        return outcome

    @property
    def problem(self) -> str:
        condition = self.resource.condition(READY)
        return "" if condition["status"] == "True" else str(condition["message"])

    def reasons(self) -> list[str]:
        return [each.reason for each in self.look().notes]


def test_services_lead_to_the_primary_alone_and_follow_a_promotion() -> None:
    stage = Stage("quarry", "quarry-copy", shards=2)
    for number in (0, 1):
        stage.answers |= {f"quarry-{number}": primary(), f"quarry-copy-{number}": copy()}
    assert stage.reasons() == ["ClientsLed", "ClientsLed"]
    wanted = {"quarry-0": "primary", "quarry-1": "primary", "quarry-copy-0": "copy", "quarry-copy-1": "copy"}
    assert stage.kubernetes.labels == wanted
    assert (stage.problem, stage.resource.status["served"], stage.resource.status["lag"]) == ("", "2/2", "0.25 s")
    assert stage.reasons() == []

    # the old primary is not gone yet, and does not know of the promotion
    stage.answers["quarry-copy-1"] = primary(2)
    assert stage.reasons() == ["ClientsLed"]
    assert stage.kubernetes.labels == {**wanted, "quarry-1": "copy", "quarry-copy-1": "primary"}
    assert "shard 1 has no copy that follows" in stage.problem
    stage.answers["quarry-copy-1"] = STARTING
    stage.look()
    assert stage.kubernetes.labels["quarry-1"] == "copy", "whoever is of an older term serves no more"
    assert "shard 1 has no primary" in stage.problem


def test_shards_without_copies_have_no_labels() -> None:
    stage = Stage("quarry")
    stage.answers["quarry-0"] = primary(0)
    assert stage.reasons() == []
    assert (stage.kubernetes.labels, stage.problem) == ({}, "")
    del stage.answers["quarry-0"]
    stage.look()
    assert stage.problem == "shard 0 has no primary that serves"


def test_the_status_is_written_for_news_and_for_lags_now_and_then() -> None:
    stage = Stage("quarry", "quarry-copy")
    stage.answers |= {"quarry-0": primary(), "quarry-copy-0": copy()}
    stage.look()
    stage.answers["quarry-copy-0"] = copy(missingBytes=9, lagSeconds=0.5)
    stage.clock.advance(1)
    stage.look()
    assert stage.writes == 1
    stage.clock.advance(TOLD_EVERY_S)
    stage.look()
    assert stage.writes == 2
    assert stage.resource.status["shards"][0]["missing"] == {"bytes": 9, "changes": 3, "lagSeconds": 0.5}


def test_a_copy_is_promoted_once_its_primary_is_lost_for_long_enough() -> None:
    stage = Stage("quarry", "quarry-copy", afterSeconds=30)
    stage.answers |= {"quarry-0": primary(), "quarry-copy-0": copy()}
    stage.look()
    del stage.answers["quarry-0"]
    stage.look()
    stage.clock.advance(100)
    stage.look()
    assert stage.kubernetes.commands == [], (
        "the copy still hears of the primary: the operator is cut off, not the primary"
    )
    stage.answers["quarry-copy-0"] = copy(silent_s=29)
    stage.look()
    assert "quarry-copy-0 is promoted after 30 s" in stage.problem
    assert stage.kubernetes.commands == []
    stage.answers["quarry-copy-0"] = copy(connected=False, silent_s=30)
    [note] = stage.look().notes
    assert note.reason == "Promoted"
    assert "7,000 bytes and 3 changes, the oldest of them 0.2 s old" in note.message
    command = "quarry replica promote --store /var/lib/quarry/store --yes"
    assert stage.kubernetes.commands == [("quarry-copy-0", command)]
    assert stage.resource.status["shards"][0]["missing"]["bytes"] == 7_000, "what was lost stays in the status"
    stage.answers["quarry-copy-0"] = primary(2)
    assert stage.reasons() == ["ClientsLed"]


@pytest.mark.parametrize(
    ("pods", "why"),
    [
        ({"quarry-copy-0": copy(connected=False, seeding=True, silent_s=500)}, "no copy that can be promoted"),
        ({"quarry-copy-0": copy(connected=False, silent_s=None)}, "no copy that can be promoted"),
        ({}, "no copy that can be promoted"),
        ({"quarry-copy-0": copy(connected=False, silent_s=500), "quarry-0": STARTING}, "no primary that serves"),
        (
            {"quarry-copy-0": copy(connected=False, silent_s=500), "quarry-0": primary(serves=False)},
            "no primary that serves",
        ),
    ],
)
def test_nothing_is_promoted_that_is_not_whole_or_whose_primary_may_come_back(
    pods: dict[str, Answer], why: str
) -> None:
    stage = Stage("quarry", "quarry-copy", afterSeconds=10)
    stage.answers |= {"quarry-0": primary(), "quarry-copy-0": copy()}
    stage.look()
    stage.answers = pods
    for _ in range(5):
        stage.look()
        stage.clock.advance(20)
    assert stage.kubernetes.commands == []
    assert why in stage.problem


def test_without_leave_nothing_is_promoted_and_the_command_is_told() -> None:
    stage = Stage("quarry", "quarry-copy")
    stage.answers |= {"quarry-0": primary(), "quarry-copy-0": copy()}
    stage.look()
    stage.answers = {"quarry-copy-0": copy(connected=False, silent_s=500)}
    stage.look()
    stage.clock.advance(1_000)
    stage.look()
    assert stage.kubernetes.commands == []
    assert "kubectl exec quarry-copy-0 -- quarry replica promote --store /var/lib/quarry/store" in stage.problem
    assert "7,000 bytes" in stage.problem


def test_a_promotion_that_fails_is_told_and_tried_again() -> None:
    stage = Stage("quarry", "quarry-copy", afterSeconds=10)
    stage.answers |= {"quarry-copy-0": copy(connected=False, silent_s=500)}
    stage.kubernetes.run_ends = (False, "it is to be seeded again")
    stage.look()
    stage.clock.advance(10)
    assert stage.reasons() == []
    assert "could not be promoted: it is to be seeded again" in stage.problem
    stage.kubernetes.run_ends = (True, "")
    assert stage.reasons() == ["Promoted"]


def test_more_shards_are_made_at_once() -> None:
    stage = Stage("quarry", "quarry-copy", shards=3, replicas=1)
    assert stage.reasons() == ["Scaled"]
    assert stage.kubernetes.sets == {"quarry": 3, "quarry-copy": 3}


def test_a_shard_leaves_when_consumers_have_all_its_messages() -> None:
    stage = Stage("quarry", shards=2)
    stage.broker.states = {"quarry-0": "active", "quarry-1": "active"}
    stage.answers |= {"quarry-0": primary(0), "quarry-1": primary(0)}
    stage.want(1)
    stage.broker.ready = 5
    assert stage.reasons() == ["Draining"]
    assert stage.broker.states == {"quarry-0": "active", "quarry-1": "draining"}
    assert stage.problem == "quarry-1 stays until its messages are consumed: group b has 5 messages there"
    stage.broker.ready, stage.broker.timers = 0, 2
    assert stage.reasons() == []
    assert "2 delayed messages" in stage.problem
    stage.broker.timers = 0
    assert stage.reasons() == ["Scaled"]
    assert stage.kubernetes.sets == {"quarry": 1}
    assert stage.reasons() == []
    assert stage.problem == "quarry-1 is still a member of the cluster"
    stage.broker.away.add("quarry-1")
    assert stage.reasons() == ["Removed"]
    stage.look()
    assert (stage.problem, stage.broker.states) == ("", {"quarry-0": "active"})


def test_a_shard_that_was_to_leave_stays_after_all() -> None:
    stage = Stage("quarry", shards=2)
    stage.broker.states = {"quarry-0": "active", "quarry-1": "active"}
    stage.answers |= {"quarry-0": primary(0), "quarry-1": primary(0)}
    stage.broker.ready = 5
    stage.want(1)
    stage.look()
    stage.want(2)
    assert stage.reasons() == ["Activated"]
    assert (stage.problem, stage.broker.states["quarry-1"]) == ("", "active")


def test_a_broker_that_is_away_keeps_nobody_from_being_led() -> None:
    stage = Stage("quarry", "quarry-copy", shards=1, replicas=2)
    stage.answers |= {"quarry-0": primary(), "quarry-copy-0": copy()}
    stage.broker.is_away = True
    assert stage.reasons() == ["ClientsLed"]
    assert "the number of shards is not changed" in stage.problem
    assert stage.kubernetes.sets == {"quarry": 2, "quarry-copy": 2}


def test_a_set_that_does_not_exist_is_named() -> None:
    stage = Stage("quarry")
    del stage.kubernetes.sets["quarry"]
    stage.look()
    assert "there is no StatefulSet quarry" in stage.problem
    outcome = stage.look()
    assert replace(outcome, notes=()).again_s is not None
