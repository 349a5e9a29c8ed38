"""Whatever happens to the members of a cluster, and in whichever order they hear of it: groups stay in order.

The model: members with logs, whose rows of members reach each other at any time, that die and come back, join, drain
and are removed. Everything that decides is the real `Handover`; a send is one number of its group, and one consumer
group reads all logs, each from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from quarry_mq.server.cluster.handover import Fence, Handover, HandoverState
from quarry_mq.server.cluster.membership import MemberState, View

NAMES = ("a", "b", "c")
GROUPS = ("g0", "g1", "g2", "g3")
NODE = st.sampled_from(NAMES)

GONE = None
Row = tuple[int, MemberState | None]


@dataclass
class Node:
    """A member. What is stored outlives a crash."""

    name: str
    rows: dict[str, Row] = field(default_factory=dict)
    stored: HandoverState = field(default_factory=HandoverState)
    log: list[tuple[str, int]] = field(default_factory=list)
    consumed: int = 0
    cleared: set[Fence] = field(default_factory=set)
    is_up: bool = False
    is_open: bool = False
    fences: dict[str, int] = field(default_factory=dict)
    handover: Handover = field(init=False)

    def start(self) -> None:
        self.is_up, self.is_open = True, False
        self.handover, self.fences, self.cleared = Handover(self.name, self.stored), {}, set()

    def states(self) -> dict[str, MemberState]:
        return {name: state for name, (_, state) in self.rows.items() if state is not None}

    def takes(self, group: str) -> bool:
        return self.is_open and self.handover.owner(group) == self.name and self.handover.may_take(group)

    def store(self, state: HandoverState) -> None:
        self.stored = self.handover.state = state


class Cluster(RuleBasedStateMachine):
    """Steps that a cluster can take."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {name: Node(name) for name in NAMES}
        self.version = 0
        self.sent: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.got: dict[str, int] = dict.fromkeys(GROUPS, 0)
        self.lost: set[tuple[str, int]] = set()
        self.removed: set[str] = set()
        for name in ("a", "b"):
            self._put(self.nodes[name], name, MemberState.ACTIVE)
            self.nodes[name].start()

    def _put(self, at: Node, name: str, state: MemberState | None) -> None:
        self.version += 1
        at.rows[name] = (self.version, state)

    def _up(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.is_up]

    # -- members

    @rule(change=st.sampled_from(("come", "crash", "leave", "drain", "activate", "remove")), at=NODE, name=NODE)
    def members_change(self, change: str, at: str, name: str) -> None:
        node, other = self.nodes[at], self.nodes[name]
        if change == "come":
            self._come(other)
        elif change == "crash":
            other.is_up = False
        elif change == "leave":
            self._set_state(node, node.name, MemberState.STOPPING)
        elif change == "remove":
            self._remove(node, other)
        else:
            self._set_state(node, name, MemberState.DRAINING if change == "drain" else MemberState.ACTIVE)

    def _come(self, node: Node) -> None:
        if not node.is_up and node.name not in self.removed:
            if node.name not in node.rows or node.rows[node.name][1] is MemberState.STOPPING:
                self._put(node, node.name, MemberState.ACTIVE)
            node.start()

    def _set_state(self, node: Node, name: str, state: MemberState) -> None:
        states = node.states()
        active = [each for each, known in states.items() if known is MemberState.ACTIVE and each != name]
        # another state of one that somebody else has removed would bring it back, for the operator to remove again
        if name in self.removed or name not in states or not node.is_up:
            return
        if active or state is MemberState.ACTIVE:
            self._put(node, name, state)

    def _remove(self, node: Node, gone: Node) -> None:
        if node.is_up and not gone.is_up and gone.name in node.states() and gone.name not in self.removed:
            self._put(node, gone.name, GONE)
            self.removed.add(gone.name)
            self.lost.update(gone.log[gone.consumed :])

    def hear(self, node: Node, other: Node) -> None:
        if node.is_up and other.is_up:
            for name, row in other.rows.items():
                if name not in node.rows or node.rows[name][0] < row[0]:
                    node.rows[name] = row

    def open(self, node: Node, _other: Node) -> None:
        """All that are known have been asked once, or do not answer. Who is new knows an address, and waits for it."""
        if node.is_up and not node.is_open:
            known = node.states() if node.stored.has_settled else NAMES
            for _ in NAMES:
                for name in known:
                    self.hear(node, self.nodes[name])
            is_alone = self.removed >= set(NAMES) - {node.name}  # nobody will answer: it does not wait for ever
            node.is_open = node.stored.has_settled or len(node.states()) > 1 or is_alone

    # -- the handover

    def adopt(self, node: Node, _other: Node) -> None:
        if node.is_open and node.is_up and node.handover.adopt(View.of(node.states())):
            node.fences = {}

    def fence(self, node: Node, _other: Node) -> None:
        if node.is_up and node.handover.view is not None and node.handover.state.fence is None:
            node.store(node.handover.fenced(len(node.log)))

    def ask(self, node: Node, other: Node) -> None:
        view = node.handover.view if node.is_up else None
        if view is None or node.handover.state.fence is None or node.handover.state.is_settled:
            return
        if other.is_up and other.handover.view == view and other.handover.state.fence is not None:
            node.fences[other.name] = other.handover.state.fence
        if node.fences.keys() >= set(view.others(node.name)):
            node.store(node.handover.settled(len(node.log), node.fences))

    @rule(steps=st.lists(st.tuples(st.sampled_from(("hear", "open", "adopt", "fence", "ask")), NODE, NODE), max_size=8))
    def some_go_on(self, steps: list[tuple[str, str, str]]) -> None:
        """One after the other, and not all of them."""
        for step, name, other in steps:
            getattr(self, step)(self.nodes[name], self.nodes[other])

    @rule()
    def everybody_goes_on(self) -> None:
        """All that can happen by itself."""
        nodes = self._up()
        for step in ("open", "hear", "hear", "adopt", "fence", "ask"):
            for node in nodes:
                for other in nodes:
                    getattr(self, step)(node, other)

    # -- messages

    @rule(sends=st.lists(st.tuples(NODE, st.sampled_from(GROUPS)), min_size=1, max_size=8))
    def send(self, sends: list[tuple[str, str]]) -> None:
        for at, group in sends:
            node = self.nodes[at]
            owner = node.handover.owner(group) if node.is_up else None
            if owner is not None and self.nodes[owner].is_up and self.nodes[owner].takes(group):
                self.sent[group] += 1
                self.nodes[owner].log.append((group, self.sent[group]))

    @rule(name=NODE, count=st.integers(1, 4))
    def consume(self, name: str, count: int) -> None:
        node = self.nodes[name]
        for _ in range(count):
            if not node.is_up or node.consumed >= len(node.log) or self._is_pinned(node):
                return
            group, number = node.log[node.consumed]
            assert number > self.got[group], f"{group}: {number} on {name} after {self.got[group]}"
            between = {(group, each) for each in range(self.got[group] + 1, number)}
            assert between <= self.lost, f"{group}: {number} on {name} before {between - self.lost}"
            self.got[group] = number
            node.consumed += 1

    def _is_pinned(self, node: Node) -> bool:
        for barrier in node.handover.state.barriers:
            if node.consumed >= barrier.position:
                for fence in barrier.fences:
                    holder = self.nodes[fence.member]
                    if holder.is_up and holder.consumed >= fence.position:
                        node.cleared.add(fence)
                if not node.cleared.issuperset(barrier.fences):
                    return True
        return False

    @invariant()
    def a_group_has_one_owner(self) -> None:
        for group in GROUPS:
            taking = [node.name for node in self._up() if node.takes(group)]
            assert len(taking) <= 1, f"{group} is taken by {taking}"

    def teardown(self) -> None:
        """When all are there, the handover ends, and no barrier holds for ever."""
        for node in self.nodes.values():
            self._come(node)
        for _ in range(4):
            self.everybody_goes_on()
        for node in self._up():
            assert node.handover.state.is_settled, f"{node.name} never settles"
        for _ in range(100):
            for node in self._up():
                self.consume(node.name, 100)
        for node in self._up():
            assert node.consumed == len(node.log), f"{node.name} holds back for ever"


COMMON: Final = settings(stateful_step_count=50, suppress_health_check=list(HealthCheck))


def test_groups_stay_in_order_whatever_happens_to_members() -> None:
    run_state_machine_as_test(Cluster, settings=settings(COMMON, max_examples=100))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_groups_stay_in_order_in_many_more_histories() -> None:
    run_state_machine_as_test(Cluster, settings=settings(COMMON, max_examples=3_000, phases=[Phase.generate]))
