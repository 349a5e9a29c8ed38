"""Page after page of a topic, both ways, with a filter: every message once and in order, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quarry_mq.server.admin import browsing
from quarry_mq.server.admin.browsing import EVERYTHING, MessageWish, Selected, Wanted
from quarry_mq.store.layout.queue_phase import QueueMode
from quarry_mq.store.message import Appended
from tests.browsing.bench import Bench, bench

QUEUES: Final = 5
BODIES: Final = (b"x" * 20, b"y" * 6_000, b"needle" + b"z" * 3_000)
TAGS: Final = ("a", "b")


class Sent(NamedTuple):
    """A message as it was sent, and where it went."""

    queue: int
    tag: str
    body: bytes
    at: Appended


class Send(NamedTuple):
    queue: int
    tag: str
    body: int
    pause_ms: int


class Expire(NamedTuple):
    segments: int


SENDS: Final = st.builds(
    Send, st.integers(0, QUEUES - 1), st.sampled_from(TAGS), st.integers(0, len(BODIES) - 1), st.integers(0, 2)
)
ACTIONS: Final = st.lists(SENDS | st.builds(Expire, st.integers(0, 2)), max_size=6)
WISHES: Final = {
    "everything": EVERYTHING,
    "tag": MessageWish.of("a", is_sql=False, contained=b""),
    "sql": MessageWish.of("TAGS = 'b'", is_sql=True, contained=b""),
    "body": MessageWish.of("", is_sql=False, contained=b"needle"),
}


class Terms(NamedTuple):
    """What is asked for. `start`: which of the messages sent before says time or offset; None: the end of the topic."""

    is_ascending: bool
    queue: int | None
    wish: str
    limit: int
    looked_at_max: int
    start: int | None
    by_offset: bool


TERMS: Final = st.builds(
    Terms,
    st.booleans(),
    st.none() | st.integers(0, QUEUES - 1),
    st.sampled_from(sorted(WISHES)),
    st.integers(1, 7),
    st.integers(1, 12),
    st.none() | st.integers(0, 60),
    st.booleans(),
)


def wants(wish: str, each: Sent) -> bool:
    return {
        "everything": True,
        "tag": each.tag == "a",
        "sql": each.tag == "b",
        "body": b"needle" in each.body,
    }[wish]


def place(each: Sent) -> int:
    return each.at.physical_offset


class Reader:
    """Pages as the model has them beside those of the browser."""

    def __init__(self, bench: Bench, topic: str, terms: Terms) -> None:
        self.bench = bench
        self.topic = topic
        self.terms = terms
        self.sent: list[Sent] = []
        self.beyond: int | None = None

    def do(self, actions: Sequence[Send | Expire]) -> None:
        for action in actions:
            if isinstance(action, Expire):
                self.bench.expire(action.segments)
                continue
            self.bench.clock.advance(action.pause_ms / 1000)
            body = BODIES[action.body]
            at = self.bench.send(self.topic, action.queue, body, TAGS=action.tag)
            self.sent.append(Sent(action.queue, action.tag, body, at))
        self.bench.show()

    def begin(self) -> Wanted:
        terms = self.terms
        wanted = Wanted(
            terms.limit,
            1 << 40,
            is_ascending=terms.is_ascending,
            looked_at_max=terms.looked_at_max,
            wish=WISHES[terms.wish],
        )
        if terms.start is None or not self.sent:
            return wanted
        start = self.sent[terms.start % len(self.sent)].at
        if terms.queue is not None and terms.by_offset:
            return wanted._replace(offset=start.queue_offset)
        stored_ms = start.store_timestamp_ms
        return wanted._replace(begin_ms=stored_ms) if terms.is_ascending else wanted._replace(end_ms=stored_ms)

    def there(self, wanted: Wanted) -> list[Sent]:
        """All that lies before the reader, in order, whether or not the filter wants it."""
        terms, log_begin = self.terms, self.bench.store.expiry.minimum
        found = [
            each
            for each in self.sent
            if place(each) >= log_begin
            and terms.queue in {None, each.queue}
            and wanted.begin_ms <= each.at.store_timestamp_ms <= wanted.end_ms
        ]
        if not terms.is_ascending:
            found.reverse()
        if wanted.offset is not None:
            offset = wanted.offset
            found = [
                each
                for each in found
                if (each.at.queue_offset >= offset if terms.is_ascending else each.at.queue_offset <= offset)
            ]
        if wanted.beyond is not None:
            beyond = wanted.beyond
            found = [each for each in found if (place(each) > beyond if terms.is_ascending else place(each) < beyond)]
        return found

    def check_page(self, wanted: Wanted) -> Wanted | None:
        """The browser's page is the model's; returns what to ask next, None at the end."""
        there = self.there(wanted)
        expected: list[Sent] = []
        looked_at: list[Sent] = []
        for each in there:
            if len(expected) == wanted.limit or len(looked_at) == wanted.looked_at_max:
                break
            looked_at.append(each)
            if wants(self.terms.wish, each):
                expected.append(each)
        found = self.bench.page(Selected(self.topic, self.terms.queue), wanted)
        assert [each.physical_offset for each in found.messages] == [place(each) for each in expected]
        assert [bytes(each.body) for each in found.messages] == [each.body for each in expected]
        assert found.looked_at == len(looked_at)
        assert found.looked_up_to_ms == (looked_at[-1].at.store_timestamp_ms if looked_at else None)
        assert found.next == (place(looked_at[-1]) if len(looked_at) < len(there) else None)
        if found.next is None:
            return None
        return wanted._replace(beyond=found.next, offset=None, begin_ms=0, end_ms=Wanted(1, 1).end_ms)


@pytest.fixture(scope="module", params=[QueueMode.ROCKSDB, QueueMode.FILE], ids=lambda mode: mode.value)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch, bench(tmp_path_factory.mktemp("pages"), request.param) as made:
        # so that pages begin, end and go on within what is read at once
        patch.setattr(browsing, "ENTRIES_AT_ONCE", 3)
        patch.setattr(browsing, "ENDS_AT_ONCE", 2)
        patch.setattr(browsing, "ASKED", 2)
        yield made


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(terms=TERMS, before=st.lists(SENDS, max_size=40), between=st.lists(ACTIONS, max_size=8))
@example(terms=Terms(True, None, "sql", 7, 1, None, True), before=[], between=[[Expire(1), Send(1, "a", 0, 0)]])
def test_every_message_comes_once_and_in_order(
    store: Bench, terms: Terms, before: list[Send], between: list[Sequence[Send | Expire]]
) -> None:
    reader = Reader(store, store.topic(), terms)
    reader.do(before)
    wanted: Wanted | None = reader.begin()
    meanwhile = iter(between)
    while wanted is not None:
        wanted = reader.check_page(wanted)
        reader.do(next(meanwhile, ()))
