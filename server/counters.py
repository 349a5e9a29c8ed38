"""Count what happens while the broker serves, as plain Python values without a metrics library.

Counting must cost next to nothing; an exporter reads the counts later. All counting is on the event loop's thread.

Messages and bytes in and out are counted by topic and by group, and recent rates are computed from the counts. A broker
may have a million topics, and the system that stores its metrics must not get a million series (ADR 27). So a table has
a bounded number of rows. While there is room, a name gets a row with its first count. Later names are counted under
`OTHER` until they are twice as busy as the least busy row and have a noticeable part of all messages: a review, a few
times a minute, lets such a name take that row's place. Where a million names are equally busy none of them ever does,
so that series do not come and go without end.

No count ever moves from one row to another. A replaced row is dropped, a new one begins at zero, and `OTHER` only
grows: to Prometheus the first is a series that ended, the second a counter that was reset. The sum of the rates is
right at any time; adding the counts of a row to `OTHER` would show as messages that no producer sent.

Histograms are plain numbers; they hold the times of the stages of sends and receives. A stage that runs once per batch
of sends is timed in each batch; one that runs once per call, in one call of `SAMPLED`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.names import LIGHT_QUEUE_PREFIX, RETRY_PREFIX
from quarry_mq.store.message import Appended
from quarry_mq.store.record import StoredMessage


class BucketHistogram:
    """A histogram counts the values between each bound and the one before. One thread adds, any reads."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count `times` values of this size."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def bounds(self) -> Sequence[float]:
        return self._bounds

    def counts(self) -> tuple[int, ...]:
        """Return how many values fell between each bound and the one before; last, how many were above all bounds."""
        return tuple(self._counts)

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound as text and the count of values up to it; the last bound is `+Inf`."""
        below = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts(), strict=True):
            below += count
            yield bound, below


SAMPLED: Final = 17
"""Calls of which one is timed. The number is a prime: calls that alternate in a pattern are all timed equally often."""

BOUNDS_S: Final = tuple(0.000_004 * 4**step for step in range(11))
"""Bounds from 4 µs, to parse a lone message, to 4 s, a disk that hangs for longer than clients wait."""

WAIT_BOUNDS_S: Final = tuple(0.000_1 * 4**step for step in range(10))
"""Bounds from 100 µs to 26 s: a receive waits 20 s at most unless the client asks for more."""


class _Sampled:
    """Choose which calls are timed."""

    def __init__(self) -> None:
        self._calls = 0

    def is_turn(self) -> bool:
        self._calls += 1
        return not self._calls % SAMPLED


class SendStages(_Sampled):
    """Histograms of the stages of a send, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.check: Final = BucketHistogram(BOUNDS_S)
        """Time from the call's bytes to a message that waits for its batch; one call of `SAMPLED`. For fast-path sends,
        which are checked together, it is the mean of one loop iteration of `SAMPLED`."""
        self.gather: Final = BucketHistogram(BOUNDS_S)
        """Time that the first send of a batch waits until the batch begins."""
        self.append: Final = BucketHistogram(BOUNDS_S)
        """Time to encode all records of a batch and append them to the log."""
        self.flush: Final = BucketHistogram(BOUNDS_S)
        """Time from the append of a flush's first send to the end of that flush. Under `sync` alone."""
        self.dispatch: Final = BucketHistogram(BOUNDS_S)
        """Time to write all consume queue entries of what is durable."""
        self.wake: Final = BucketHistogram(BOUNDS_S)
        """Time to give the messages to consumers that wait for them."""
        self.answer: Final = BucketHistogram(BOUNDS_S)
        """Time to answer all sends that are done."""

    def __iter__(self) -> Iterator[tuple[str, BucketHistogram]]:
        for name in ("check", "gather", "append", "flush", "dispatch", "wake", "answer"):
            yield name, getattr(self, name)


class ReceiveStages(_Sampled):
    """Histograms of the stages of a receive that returns messages; all but `wait` are timed in one of `SAMPLED`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.now_s: Final = clock.monotonic_s
        self.is_timed = False
        """True while the receive that is served now is one of those that are timed."""
        self.reading_s = 0.0
        """Seconds that the present receive has spent reading records."""
        self.wait: Final = BucketHistogram(WAIT_BOUNDS_S)
        """Time from the call to messages that were not there at first."""
        self.take: Final = BucketHistogram(BOUNDS_S)
        """Time to read queues and make deliveries, the reading of records included."""
        self.read: Final = BucketHistogram(BOUNDS_S)
        """Time to read and check records, a part of `take`."""
        self.write: Final = BucketHistogram(BOUNDS_S)
        """Time until the deliveries are written, with all others of the same loop iteration."""
        self.answer: Final = BucketHistogram(BOUNDS_S)
        """Time to make the answers and hand them to the front."""

    def __iter__(self) -> Iterator[tuple[str, BucketHistogram]]:
        for name in ("wait", "take", "read", "write", "answer"):
            yield name, getattr(self, name)


OTHER: Final = "__other__"
"""Stands for all topics, or groups, without a series of their own. A topic or group of this name never has one."""

CANDIDATES_PER_ROW: Final = 8
"""Names without a row that are counted between two reviews, per row: the first to come, busy ones among them."""

PART_PER_ROW: Final = 4
"""A name replaces another one only if it has at least a quarter of an equal share of all messages per row."""

SIZE_BOUNDS: Final = (1024.0, 4096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)
"""Bounds of message sizes in bytes, the same as RocketMQ's."""

Key = TypeVar("Key", bound=Hashable)


class Row:
    """Counts of one name since it got its row."""

    __slots__ = ("activity", "bytes", "messages", "reviewed", "sizes")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.sizes = BucketHistogram(SIZE_BOUNDS)
        self.reviewed = 0
        """Value of `messages` at the last review."""
        self.activity = 0
        """Recent messages: those between the last two reviews, and half of the value before."""

    def count(self, messages: int, size: int) -> None:
        """Count messages; `size` is that of all of them together, in bytes."""
        self.messages += messages
        self.bytes += size


class TopCounts(Generic[Key]):
    """A table with a bounded number of rows, by key. One thread counts and reviews, any reads."""

    def __init__(
        self, rows_max: int, other_of: Callable[[Key], Key], is_hidden: Callable[[Key], bool] = lambda _: False
    ) -> None:
        """`other_of` returns the key that a key without a row is counted under: one of a few, which always have rows.

        A key equal to one of those gets no row of its own, nor does one that `is_hidden`, however busy it is.
        """
        self._rows_max = rows_max
        self._other_of = other_of
        self._is_hidden = is_hidden
        self._rows: dict[Key, Row] = {}
        self._others: dict[Key, Row] = {}
        self._candidates: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: Key, messages: int) -> Row:
        """Return the row in which to count `messages` messages of the key."""
        return self._rows.get(key) or self._without_row(key, messages)

    def _without_row(self, key: Key, messages: int) -> Row:
        other = self._other_of(key)
        if key != other and not self._is_hidden(key):
            if len(self._rows) < self._rows_max:
                row = self._rows[key] = Row()
                return row
            known = self._candidates.get(key)
            if known is not None or len(self._candidates) < CANDIDATES_PER_ROW * self._rows_max:
                self._candidates[key] = messages + (known or 0)
        return self._others.get(other) or self._others.setdefault(other, Row())

    def review(self) -> None:
        """Let names that have become busy take the place of idle ones. To be called a few times a minute."""
        counted = 0
        for row in (*self._rows.values(), *self._others.values()):
            came = row.messages - row.reviewed
            row.activity = row.activity // 2 + came
            row.reviewed = row.messages
            counted += came
        found, self._candidates = self._candidates, {}
        least = counted / (PART_PER_ROW * self._rows_max)
        candidates = {key: messages for key, messages in found.items() if messages >= least}
        idlest = sorted(self._rows, key=lambda key: self._rows[key].activity)
        busiest = sorted(candidates, key=lambda key: candidates[key], reverse=True)
        for old, new in zip(idlest, busiest, strict=False):
            # steady activity is twice the messages since the last review, so equally busy names never alternate
            if candidates[new] <= self._rows[old].activity:
                return
            del self._rows[old]
            self._rows[new] = Row()

    def remove_if(self, gone: Callable[[Key], bool]) -> None:
        """Drop the rows of names that are deleted."""
        for key in [key for key in self._rows if gone(key)]:
            del self._rows[key]

    def rows(self) -> Iterator[tuple[Key, Row]]:
        """Iterate over all present rows, those of the others included. For any thread."""
        # each list is made in one step that no other thread interrupts
        yield from list(self._rows.items())
        yield from list(self._others.items())

    def keys(self) -> list[Key]:
        """Return the keys that have a row of their own."""
        return list(self._rows)


class InKey(NamedTuple):
    """Key of messages that producers sent: the topic and the message type (RocketMQ's word in lower case)."""

    topic: str
    message_type: str


class PairKey(NamedTuple):
    """Key of a group and a topic it receives; `is_retry` for messages from the group's retry topics."""

    group: str
    topic: str
    is_retry: bool = False


class TopicKey(NamedTuple):
    topic: str


def _hides(name: str) -> bool:
    """Return whether a name has no series: light queues never have one, and a topic called `OTHER` must not collide."""
    return name == OTHER or name.startswith(LIGHT_QUEUE_PREFIX)


def _hides_topic(key: InKey | TopicKey) -> bool:
    return _hides(key.topic)


def _hides_pair(key: PairKey) -> bool:
    return key.group == OTHER or _hides(key.topic)


def _other_in(key: InKey) -> InKey:
    return InKey(OTHER, key.message_type)


def _other_pair(key: PairKey) -> PairKey:
    return PairKey(OTHER, OTHER, key.is_retry)


def _other_topic(_key: TopicKey) -> TopicKey:
    return TopicKey(OTHER)


class Traffic:
    """Count the broker's traffic; `server.observability.metrics.rocketmq` exports it."""

    def __init__(self, *, topics_max: int, groups_max: int) -> None:
        self.sent_by_topic: Final = TopCounts[InKey](topics_max, _other_in, _hides_topic)
        self.received_by_group: Final = TopCounts[PairKey](groups_max, _other_pair, _hides_pair)
        self.dead_lettered_by_group: Final = TopCounts[PairKey](groups_max, _other_pair, _hides_pair)
        self.sent_back_by_group: Final = TopCounts[PairKey](groups_max, _other_pair, _hides_pair)
        self.committed_by_topic: Final = TopCounts[TopicKey](topics_max, _other_topic, _hides_topic)
        self.rolled_back_by_topic: Final = TopCounts[TopicKey](topics_max, _other_topic, _hides_topic)
        self.messages_sent = 0
        self.messages_received = 0
        self.messages_dead_lettered = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        """Totals over all names; unlike the rows they never decrease. Bytes are the sizes of records."""

    def sent(self, topic: str, message_type: str, appended: Sequence[Appended]) -> None:
        """Count a stored send; all of its messages count as of the first one's type."""
        messages, size = len(appended), sum([each.size for each in appended])
        self.messages_sent += messages
        self.bytes_sent += size
        row = self.sent_by_topic.row(InKey(topic, message_type), messages)
        row.count(messages, size)
        row.sizes.add(size / messages, messages)

    def sent_together(self, message_type: str, sizes_by_topic: Mapping[str, list[int]]) -> None:
        """Count the stored messages of several sends; sizes are those of the records."""
        sizes_of: dict[Row, list[int]] = {}
        for topic, sizes in sizes_by_topic.items():
            row = self.sent_by_topic.row(InKey(topic, message_type), len(sizes))
            sizes_of.setdefault(row, []).extend(sizes)  # several topics may share a row
        for row, sizes in sizes_of.items():
            messages, size = len(sizes), sum(sizes)
            self.messages_sent += messages
            self.bytes_sent += size
            row.count(messages, size)
            for each, times in Counter(sizes).items():
                row.sizes.add(each, times)

    def received(self, group: str, topic: str, messages: int, size: int, *, is_retry: bool) -> None:
        """Count the messages that a receive returned; their records have `size` bytes together."""
        self.messages_received += messages
        self.bytes_received += size
        self.received_by_group.row(PairKey(group, topic, is_retry), messages).count(messages, size)

    def delivered(self, group: str, topic: str, records: Sequence[StoredMessage]) -> None:
        """Count the messages of a receive; those from the group's retry topics are counted separately."""
        again = [each.size for each in records if each.topic.startswith(RETRY_PREFIX)]
        if len(again) < len(records):
            size = sum([each.size for each in records]) - sum(again)
            self.received(group, topic, len(records) - len(again), size, is_retry=False)
        if again:
            self.received(group, topic, len(again), sum(again), is_retry=True)

    def dead_lettered(self, group: str, topic: str) -> None:
        """Count a message that went to the dead letters of its group."""
        self.messages_dead_lettered += 1
        self.dead_lettered_by_group.row(PairKey(group, topic), 1).count(1, 0)

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a remoting consumer could not consume, and sent back."""
        self.sent_back_by_group.row(PairKey(group, topic), 1).count(1, 0)

    def ended(self, topic: str, *, is_commit: bool) -> None:
        """Count a transaction that a producer has ended, once that is stored."""
        counts = self.committed_by_topic if is_commit else self.rolled_back_by_topic
        counts.row(TopicKey(topic), 1).count(1, 0)

    def review(self, topic_exists: Callable[[str], bool], group_exists: Callable[[str], bool]) -> None:
        """Let busy names replace idle ones, and drop deleted ones. To be called a few times a minute."""
        for by_topic in (self.sent_by_topic, self.committed_by_topic, self.rolled_back_by_topic):
            by_topic.remove_if(lambda key: not topic_exists(key.topic))
            by_topic.review()
        for by_group in (self.received_by_group, self.dead_lettered_by_group, self.sent_back_by_group):
            by_group.remove_if(lambda key: not topic_exists(key.topic) or not group_exists(key.group))
            by_group.review()


SAMPLE_INTERVAL_S: Final = 1.0
WINDOW_S: Final = 10.0


class Rates(NamedTuple):
    """Messages per second that were sent and received, over all names."""

    sent: float
    received: float


class _Counted(NamedTuple):
    """Counts of messages at one time: all of them, and by name, `OTHER` included."""

    at_s: float
    sent: int
    received: int
    by_topic: dict[str, int]
    by_pair: dict[tuple[str, str], int]


class RatesNow(NamedTuple):
    """Messages per second by name, with all names that have no row of their own under `OTHER`."""

    by_topic: dict[str, float]
    by_pair: dict[tuple[str, str], float]
    """Rates by group and topic, messages of the group's retry topics included."""

    @property
    def sent(self) -> dict[str, float]:
        """Return the rates by topic, without `OTHER`."""
        return {topic: rate for topic, rate in self.by_topic.items() if topic != OTHER}

    @property
    def received(self) -> dict[tuple[str, str], float]:
        """Return the rates by group and topic, without `OTHER`."""
        return {pair: rate for pair, rate in self.by_pair.items() if pair != (OTHER, OTHER)}

    def sent_to(self, topic: str) -> float | None:
        """Return a topic's rate; None if it is unknown: the topic has no row, and `OTHER` had messages."""
        return self.by_topic.get(topic, None if self.by_topic.get(OTHER) else 0.0)

    def received_of(self, group: str, topic: str) -> float | None:
        """Return the rate of a group and topic; None if it is unknown, as in `sent_to`."""
        return self.by_pair.get((group, topic), None if self.by_pair.get((OTHER, OTHER)) else 0.0)

    def received_by(self, groups: Sequence[str], topic: str) -> float | None:
        """Return the rate of all these groups together; None if that of one of them is unknown."""
        rates = [rate for group in groups if (rate := self.received_of(group, topic)) is not None]
        return sum(rates) if len(rates) == len(groups) else None


class RecentRates:
    """Sample counts and compute rates. Lives on the event loop's thread.

    `sample` is to be called every few seconds, and costs a step for each row.
    """

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._samples: Final = deque([self._counted()])

    def sample(self) -> None:
        if self._clock.monotonic_s() - self._samples[-1].at_s < SAMPLE_INTERVAL_S:
            return
        self._samples.append(self._counted())
        while self._samples[-1].at_s - self._samples[1].at_s >= WINDOW_S:
            self._samples.popleft()

    def now(self) -> RatesNow:
        """Return the rates over some ten seconds, or since the start. A row that is younger counts from zero."""
        now, then = self._counted(), self._samples[0]
        seconds = now.at_s - then.at_s
        return RatesNow(_rates(now.by_topic, then.by_topic, seconds), _rates(now.by_pair, then.by_pair, seconds))

    def totals(self) -> Rates:
        """Return the rates of all messages together over the same time, at no cost for each row."""
        then = self._samples[0]
        seconds = self._clock.monotonic_s() - then.at_s
        if seconds <= 0:
            return Rates(0.0, 0.0)
        sent, received = self._traffic.messages_sent - then.sent, self._traffic.messages_received - then.received
        return Rates(sent / seconds, received / seconds)

    def _counted(self) -> _Counted:
        traffic = self._traffic
        return _Counted(
            self._clock.monotonic_s(),
            traffic.messages_sent,
            traffic.messages_received,
            _summed((key.topic, row.messages) for key, row in traffic.sent_by_topic.rows()),
            _summed(((key.group, key.topic), row.messages) for key, row in traffic.received_by_group.rows()),
        )


def _summed(pairs: Iterable[tuple[Key, int]]) -> dict[Key, int]:
    """Add up the rows of each name: a topic has one for each type of messages, a pair another for its retry topics."""
    sums: dict[Key, int] = {}
    for key, messages in pairs:
        sums[key] = sums.get(key, 0) + messages
    return sums


def _rates(now: dict[Key, int], then: dict[Key, int], seconds: float) -> dict[Key, float]:
    """Return messages per second. A row that was dropped and made again counts from 0: no old count is subtracted."""
    if seconds <= 0:
        return dict.fromkeys(now, 0.0)
    rates: dict[Key, float] = {}
    for key, messages in now.items():
        before = then.get(key, 0)
        rates[key] = (messages - before if messages >= before else messages) / seconds
    return rates
