"""A client that says again what it wants gets what it would get without the shortcut for that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quarry_mq.kv import EngineFull, KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.lite_attributes import LiteModel
from quarry_mq.server.delivery import StateWriter
from quarry_mq.server.errors import LiteQuotaExceeded
from quarry_mq.server.lite.subscriptions import Asking, LiteSubscriptions, Start
from quarry_mq.store.message import QueueOffset
from quarry_mq.store.metadata.lite import LiteGroup, LiteSubscriptionTable
from quarry_mq.store.state.identity import FAMILIES

GROUP = "devices"
SHARED = LiteGroup(bind_topic="events")
TERMS = (
    SHARED,
    LiteGroup(bind_topic="events", model=LiteModel.EXCLUSIVE),
    LiteGroup(bind_topic="events", client_quota=-298),
    LiteGroup(bind_topic="events", wildcard=""),
)
NAMES = st.lists(st.sampled_from("abc"), max_size=3).map(tuple)
CLIENTS = st.sampled_from(["one", "two"])
DOINGS = st.one_of(
    st.tuples(st.just("say"), CLIENTS, NAMES),
    st.tuples(st.just("say"), CLIENTS, st.just(("a", "b"))),
    st.tuples(st.just("add"), CLIENTS, NAMES),
    st.tuples(st.just("remove"), CLIENTS, NAMES),
    st.tuples(st.just("clear"), CLIENTS, st.none()),
    st.tuples(st.just("go"), CLIENTS, st.none()),
    st.tuples(st.just("forget"), st.none(), st.none()),
    st.tuples(st.just("delete the group"), st.none(), st.none()),
    st.tuples(st.just("change the group"), st.none(), st.sampled_from(TERMS)),
)

AB = ("say", "one", ("a", "b"))
TO_EXCLUSIVE = ("change the group", None, TERMS[1])
TAKEN = ("add", "two", ("a",))


class Heard:
    """What the parts around hear, in order."""

    def __init__(self) -> None:
        self.all: list[object] = []

    def changed(self, group: str, client_id: str, *, added: Iterable[str] = (), removed: Iterable[str] = ()) -> None:
        if (names := (sorted(added), sorted(removed))) != ([], []):
            self.all.append(("changed", group, client_id, names))

    def client_gone(self, client_id: str) -> None:
        self.all.append(("gone", client_id))

    def let_go(self, group: str, name: str) -> None:
        self.all.append(("let go", group, name))

    def move(self, group: str, name: str, offset: QueueOffset) -> None:
        self.all.append(("moved", group, name, offset))

    def taken_away(self, client_id: str, lite_topic: str) -> None:
        self.all.append(("taken", client_id, lite_topic))


class Side:
    """Subscriptions with the shortcut, or without."""

    def __init__(self, clock: ManualClock, *, may_repeat: bool) -> None:
        self.engine = MemoryEngine(FAMILIES)
        self.table = LiteSubscriptionTable(self.engine)
        self.heard = Heard()
        self.repeated = 0
        self._may_repeat = may_repeat
        self._terms = SHARED
        self._passes: list[Callable[[], None]] = []
        self._writer = StateWriter(self.engine, self._passes.append)
        self.subscriptions = LiteSubscriptions(
            self.table,
            writer=self._writer,
            delivery=self.heard,
            queues=self.heard,
            start_of=lambda _queue, start: None if start == Start.STANDING else QueueOffset(0),
            taken_away=self.heard.taken_away,
            clock=clock,
        )

    def do(self, what: str, client_id: str, argument: Any) -> None:
        try:
            self._do(what, Asking(GROUP, self._terms, client_id), argument)
        except LiteQuotaExceeded as error:
            self.heard.all.append(repr(error))
        self._writer.write_now()

    def say(self, asking: Asking, names: tuple[str, ...]) -> None:
        """As the service does."""
        subscriptions, digest = self.subscriptions, repr((asking.group, names)).encode()
        has_said_it = self._may_repeat and subscriptions.last_said(asking.client_id) == digest
        if has_said_it and subscriptions.repeat(asking, self.done):
            self.repeated += 1
        else:
            subscriptions.replace(asking, names, self.done, digest=digest)

    def done(self, error: Exception | None) -> None:
        self.heard.all.append(("done", repr(error)))

    def rows(self) -> object:
        family = self.engine.family("lite")
        return [*family.iterate(KeyRange(b"", None))]

    def _do(self, what: str, asking: Asking, argument: Any) -> None:
        match what:
            case "say":
                self.say(asking, argument)
            case "add":
                self.subscriptions.add(asking, argument, Start.STANDING, self.done)
            case "remove":
                self.subscriptions.remove(asking, argument, self.done)
            case "clear":
                self.subscriptions.clear(asking, self.done)
            case "go":
                self.subscriptions.client_gone(asking.client_id)
            case "forget":
                while self.subscriptions._delete_gone():
                    pass
            case "delete the group":
                self.table.stage_group_gone(self._writer.batch(), GROUP)
            case "change the group":
                self._terms = argument


@given(doings=st.lists(DOINGS, max_size=30))
@example([AB, ("add", "one", ("c",)), AB])
@example([AB, ("remove", "one", ("a",)), AB])
@example([AB, ("clear", "one", None), AB])
@example([AB, ("go", "one", None), AB, ("forget", None, None)])
@example([AB, ("go", "one", None), ("forget", None, None), AB])
@example([AB, ("delete the group", None, None), AB])
@example([AB, ("change the group", None, TERMS[3]), AB])
@example([AB, TO_EXCLUSIVE, AB, TAKEN, AB, AB])
@example([TO_EXCLUSIVE, AB, TAKEN, AB, AB, AB])
@settings(max_examples=200)
def test_a_repeated_subscription_changes_nothing_but_the_time(doings: list[tuple[str, str, Any]]) -> None:
    clock = ManualClock()
    sides = [Side(clock, may_repeat=True), Side(clock, may_repeat=False)]
    for doing in doings:
        clock.advance(1)
        for side in sides:
            side.do(*doing)
        assert sides[0].heard.all == sides[1].heard.all
        assert sides[0].rows() == sides[1].rows()


def test_what_was_said_last_is_not_compared_again() -> None:
    side = Side(ManualClock(), may_repeat=True)
    for _ in range(5):
        side.do("say", "one", ("a", "b"))
    assert side.repeated == 4
    side.do("say", "one", ("a",))
    side.do("say", "one", ("a", "b"))
    assert side.repeated == 4
    assert side.table.of_client(GROUP, "one") == ["a", "b"]


def test_what_could_not_be_written_was_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side(ManualClock(), may_repeat=True)

    def full(*_: object, **__: object) -> None:
        raise EngineFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(side.engine, "write", full)
        side.do("say", "one", ("a", "b"))
    side.do("say", "one", ("a", "b"))
    assert side.repeated == 0
    assert side.heard.all[-1] == ("done", "None")
    assert side.table.of_client(GROUP, "one") == ["a", "b"]
    with monkeypatch.context() as patch:
        patch.setattr(side.engine, "write", full)
        side.do("say", "one", ("a",))
    assert side.table.of_client(GROUP, "one") == ["a", "b"]
    side.do("say", "one", ("a",))
    assert side.table.of_client(GROUP, "one") == ["a"]
