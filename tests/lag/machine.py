"""A random workload: producers, consumers, operators, time and crashes in any order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.server.delivery import ReceiveRequest
from quarry_mq.server.delivery.handles import lite_topic_of
from quarry_mq.server.delivery.model import Place as End
from quarry_mq.server.delivery.model import ResetTarget, StoredSince
from quarry_mq.server.filters import SqlFilter, TagFilter
from quarry_mq.server.lite.subscriptions import Asking, Start, StartKind
from quarry_mq.server.pending.copies import scheduled
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import DeliverySection, NewGroupStart
from quarry_mq.store.message import Message, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.lite import LiteGroup, light_queue_name
from tests.faults.machine import HOST
from tests.lag import rows
from tests.lag.bench import Bench
from tests.lag.checks import LIGHT, PARENT, Checked, check_metrics
from tests.lag.readers import Given, Place, Reader, Taste
from tests.lag.scan import LIGHT_NAMES, Scanned, light_places

Method = TypeVar("Method", bound=Callable[..., None])
often: Final[list[str]] = []
"""The names of the moves, each as many times as it counts."""
terms_of: Final[dict[str, st.SearchStrategy[dict[str, Any]]]] = {}


def move(times: int, /, **terms: st.SearchStrategy[Any]) -> Callable[[Method], Method]:
    """A move of the machine, to be made so many times as often as others.

    Rules of Hypothesis are switched off at random, and most pairs of two dozen never meet.
    """

    def enter(method: Method) -> Method:
        terms_of[method.__name__] = st.fixed_dictionaries(terms)
        often.extend([method.__name__] * times)
        return method

    return enter


ALL: Final = Taste(TagFilter.parse("*"), lambda _: True)
BLUE: Final = Taste(TagFilter.parse("blue || green"), lambda properties: properties.get("TAGS") == "blue")
LARGE: Final = Taste(SqlFilter.parse("n > 3"), lambda properties: int(properties["n"]) > 3)
LIMITED: Final = ("limited", "ordered-limited")


def readers() -> dict[str, Reader]:
    found = (
        Reader("plain", ALL),
        Reader("blue", BLUE),
        Reader("large", LARGE),
        Reader("limited", ALL, attempts_max=2),
        Reader("ordered", ALL, is_ordered=True),
        Reader("ordered-limited", BLUE, is_ordered=True, attempts_max=2),
    )
    return {each.name: each for each in found}


TOPICS: Final = ("orders", "bills")
LITE_TOPICS: Final = ("a", "b", "c")
TAGS: Final = ("blue", "red", None)
CLIENTS: Final = ("one", "two")
BOTS: Final = "bots"
TERMS: Final = LiteGroup(bind_topic=PARENT)
INVISIBLE_S: Final = (0, 5, 60)
names = st.sampled_from([*sorted(readers()), "limited", "plain"])
topics = st.sampled_from(TOPICS)
clients = st.sampled_from(CLIENTS)
which = st.integers(0, 99)
starts = st.sampled_from((Start.STANDING, Start.OLDEST, Start(StartKind.NEWEST), Start(StartKind.TAIL, 2)))


class LagMachine(RuleBasedStateMachine):
    on_disk: ClassVar[bool] = False
    """Whether the databases are RocksDB's."""

    @initialize(start=st.sampled_from((NewGroupStart.EARLIEST, NewGroupStart.LATEST)))
    def begin(self, start: NewGroupStart) -> None:
        self.ending = ExitStack()
        directory = self.ending.enter_context(tempfile.TemporaryDirectory()) if self.on_disk else None
        self.start = start
        self.bench = Bench(
            BrokerSettings(delivery=DeliverySection(new_group_start=start)),
            None if directory is None else Path(directory),
        )
        self.ending.callback(self.bench.close)
        self.readers = readers()
        self.bots = Reader(BOTS, ALL, is_ordered=True)
        self.ends: dict[QueueId, int] = {}
        self.numbers = count(1)
        self.turn = 0
        self.buried_up_to = 0
        """Dead letters below this offset of the log are known."""
        for name in TOPICS:
            self.bench.store.topics.create(Topic(name, TopicType.NORMAL, 2, 2))
        self.bench.store.topics.create(Topic(PARENT, TopicType.LITE, 2, 2))
        for reader in self._all_readers():
            self._create_group(reader)
        for name in self.readers:
            self.subscribe(name, TOPICS[0])
        for queue in range(2):
            for tag in TAGS:
                self.send(TOPICS[0], queue, tag, 2, 20)
        for reader in self.readers.values():
            self._receive(reader, TOPICS[0], 3, 60, 0)
        self.look_at_all()

    def _create_group(self, reader: Reader) -> None:
        attributes = {BIND_TOPIC: PARENT} if reader is self.bots else {}
        self.bench.store.groups.create(Group(reader.name, fifo=reader.is_ordered, attributes=attributes))

    # -- producers

    @move(
        8,
        topic=topics,
        queue=st.integers(0, 3),
        tag=st.sampled_from(TAGS),
        messages=st.integers(1, 5),
        size=st.sampled_from((20, 20, 9_000)),
    )
    def send(self, topic: str, queue: int, tag: str | None, messages: int, size: int) -> None:
        number = queue % self._topic(topic).queue_count
        self.bench.send([self._message(topic, number, tag, size) for _ in range(messages)])
        self.look()

    @move(1, topic=topics, delay_s=st.sampled_from((1, 30, 400)), tag=st.sampled_from(TAGS))
    def send_delayed(self, topic: str, delay_s: int, tag: str | None) -> None:
        due_ms = self.bench.clock.wall_ms() + delay_s * 1_000
        self.bench.send([scheduled(self._message(topic, 0, tag, 20), due_ms)])
        self.look()

    @move(3, lite_topic=st.sampled_from(LITE_TOPICS), messages=st.integers(1, 3))
    def send_lite(self, lite_topic: str, messages: int) -> None:
        for _ in range(messages):
            message = self._message(PARENT, 0, None, 20)
            properties = {**message.properties, LIGHT_NAMES: light_queue_name(PARENT, lite_topic)}
            self.bench.send([message._replace(properties=properties)])
        self.look()

    def _message(self, topic: str, queue: int, tag: str | None, size: int) -> Message:
        number = next(self.numbers)
        properties = {"UNIQ_KEY": f"m{number}", "n": str(number % 8), **({} if tag is None else {"TAGS": tag})}
        return Message(topic, queue, bytes(size), properties, self.bench.clock.wall_ms(), HOST, HOST)

    # -- consumers

    @move(
        12,
        name=names,
        topic=topics,
        times=st.sampled_from((1, 1, 2, 3)),
        batch=st.integers(1, 6),
        invisible_s=st.sampled_from(INVISIBLE_S),
        acknowledged=st.integers(0, 4),
    )
    def receive(self, name: str, topic: str, times: int, batch: int, invisible_s: int, acknowledged: int) -> None:
        for _ in range(times):
            self._receive(self.readers[name], topic, batch, invisible_s, acknowledged)

    @move(1, batch=st.integers(1, 4), of=st.sampled_from(LIMITED))
    def receive_dead_letters(self, batch: int, of: str) -> None:
        topic = f"%DLQ%{of}"
        if self.bench.store.topics.get(topic) is not None:
            self._receive(self.readers["plain"], topic, batch, 60, 1)

    def _receive(self, reader: Reader, topic: str, batch: int, invisible_s: int, acknowledged: int) -> None:
        numbers = range(self._topic(topic).queue_count)
        request = ReceiveRequest(
            reader.name,
            topic,
            numbers,
            reader.taste.told,
            batch,
            invisible_s * 1_000,
            "one",
            reader.is_ordered,
            "",
            reader.attempts_max,
        )
        self._starts(reader, topic)
        delivered = self.bench.receive(request)
        self._know_the_buried()
        for each in delivered:
            place = Place(QueueId(each.record.topic, each.record.queue_number), each.record.queue_offset)
            assert reader.taste.wants(each.record.properties)
            reader.got(place, Given(topic, each.receipt_handle, each.attempt))
            if acknowledged > 0:
                acknowledged -= 1
                self._acknowledge(reader, place)
        self.look(reader)

    def _starts(self, reader: Reader, topic: str) -> None:
        is_latest = self.start is NewGroupStart.LATEST
        reader.starts(
            topic, {queue: end if is_latest else 0 for queue, end in self.ends.items() if queue.topic == topic}
        )

    @move(1, name=names, topic=topics)
    def subscribe(self, name: str, topic: str) -> None:
        """A consumer says what it wants."""
        self._starts(self.readers[name], topic)
        self.bench.delivery.start_group(name, topic, range(self._topic(topic).queue_count))
        self.bench.end_pass()
        self.look(self.readers[name])

    @move(3, client=clients, lite_topics=st.sets(st.sampled_from(LITE_TOPICS), min_size=1), start=starts)
    def want_lite(self, client: str, lite_topics: set[str], start: Start) -> None:
        wanted = self.bots.lite_wanted.setdefault(client, set())
        for name in sorted(lite_topics - wanted):
            queue = QueueId(LIGHT + name, 0)
            kept = [each.offset for each in self.queues.get(queue, ())]
            end = self.ends.get(queue, 0)
            match start.kind:
                case StartKind.OLDEST:
                    self.bots.moved(queue, min(kept, default=end), keeps_before=False)
                case StartKind.NEWEST:
                    self.bots.moved(queue, end, keeps_before=False)
                case StartKind.TAIL:
                    self.bots.moved(queue, min(kept[-start.value :], default=end), keeps_before=False)
        self.bench.want_lite(Asking(BOTS, TERMS, client), sorted(lite_topics), start)
        wanted |= lite_topics
        self.look(self.bots)

    @move(1, client=clients, lite_topics=st.sets(st.sampled_from(LITE_TOPICS), min_size=1))
    def want_lite_no_more(self, client: str, lite_topics: set[str]) -> None:
        self.bench.want_lite_no_more(Asking(BOTS, TERMS, client), sorted(lite_topics))
        self.bots.lite_wanted.get(client, set()).difference_update(lite_topics)
        self.look(self.bots)

    @move(
        4,
        client=clients,
        batch=st.integers(1, 6),
        invisible_s=st.sampled_from(INVISIBLE_S),
        acknowledged=st.integers(0, 4),
    )
    def receive_lite(self, client: str, batch: int, invisible_s: int, acknowledged: int) -> None:
        request = ReceiveRequest(
            BOTS, PARENT, range(2), self.bots.taste.told, batch, invisible_s * 1_000, client, is_ordered=True
        )
        for each in self.bench.receive_lite(request, TERMS):
            queue = QueueId(LIGHT + lite_topic_of(each.receipt_handle), 0)
            place = Place(queue, light_places(each.record)[queue])
            self.bots.got(place, Given(PARENT, each.receipt_handle, each.attempt))
            if acknowledged > 0:
                acknowledged -= 1
                self._acknowledge(self.bots, place)
        self.look(self.bots)

    @move(5, which=which, times=st.integers(1, 3))
    def acknowledge(self, which: int, times: int) -> None:
        for _ in range(times):
            for reader, place in self._some_place(which):
                self._acknowledge(reader, place)
                self.look(reader)

    def _acknowledge(self, reader: Reader, place: Place) -> None:
        given = reader.given[place]
        if self.bench.acknowledge(reader.name, given.topic, given.handle):
            reader.ends(place)

    @move(3, which=which, invisible_s=st.sampled_from(INVISIBLE_S))
    def hide(self, which: int, invisible_s: int) -> None:
        for reader, place in self._some_place(which):
            given = reader.given[place]
            handle = self.bench.hide(reader.name, given.topic, given.handle, invisible_s * 1_000)
            given.handle = handle or given.handle
            self.look(reader)

    @move(3, which=which, again=st.booleans())
    def dead_letter(self, which: int, again: bool) -> None:
        """The consumer asks for it, as one of an ordered group does after its last attempt."""
        for reader, place in self._some_place(which):
            given = reader.given[place]
            if reader is not self.bots and self.bench.dead_letter(reader.name, given.topic, given.handle):
                reader.ends(place)
                self.buried_up_to = self.bench.store.messages.appended_up_to
                if again:
                    self.bench.resend(reader.name)
                self.look(reader)

    @move(3, name=st.sampled_from(("plain", "blue", "limited")), topic=topics, percent=st.integers(0, 100), which=which)
    def commit_offset(self, name: str, topic: str, percent: int, which: int) -> None:
        """As a client does that pulls; often where the group has something in flight."""
        reader, queues = self.readers[name], self._topic(topic).queue_count
        queue = QueueId(topic, which % queues)
        given = [place for place in sorted(reader.given) if place.queue.topic == topic and place.queue.number < queues]
        if given and percent % 2:
            queue = given[which % len(given)].queue
        bounds = self.bench.store.messages.bounds(queue)
        offset = bounds.minimum + (bounds.maximum - bounds.minimum) * percent // 100
        reader.reads.add(topic)
        reader.moved(queue, offset, keeps_before=True)
        self.bench.delivery.commit_offset(name, queue, QueueOffset(offset))
        self.bench.end_pass()
        self.look(reader)

    def _some_place(self, which: int) -> Iterable[tuple[Reader, Place]]:
        """One of all that groups were given; none where nothing is."""
        found = [(reader, place) for reader in self._all_readers() for place in sorted(reader.given)]
        return found[which % len(found) : which % len(found) + 1] if found else ()

    # -- operators

    @move(
        1,
        name=names,
        topic=topics,
        to=st.sampled_from((End.EARLIEST, End.LATEST, 0, 3)),
        ago_s=st.one_of(st.none(), st.integers(0, 100)),
    )
    def reset_offset(self, name: str, topic: str, to: End | int, ago_s: int | None) -> None:
        since_ms = None if ago_s is None else self.bench.clock.wall_ms() - ago_s * 1_000
        target: ResetTarget = QueueOffset(to) if isinstance(to, int) else to
        if since_ms is not None:
            target = StoredSince(since_ms)
        resets = self.bench.reset_offset(name, topic, target)
        reader = self.readers[name]
        reader.reads.add(topic)
        for reset in resets:
            begin = self._begin_of_reset(reset.queue, to, since_ms)
            reader.moved(reset.queue, begin, keeps_before=False)
        self.look(reader)

    def _begin_of_reset(self, queue: QueueId, to: End | int, since_ms: int | None) -> int:
        messages, end = self.queues.get(queue, []), self.ends.get(queue, 0)
        if since_ms is not None:
            return next((each.offset for each in messages if each.stored_ms >= since_ms), end)
        match to:
            case End.EARLIEST:
                return 0
            case End.LATEST:
                return end
            case int():
                return min(to, end)

    @move(2, topic=topics, queues=st.integers(1, 4))
    def change_queues(self, topic: str, queues: int) -> None:
        self.bench.change_queues(Topic(topic, TopicType.NORMAL, queues, queues))
        self.look()

    @move(1, topic=topics, queues=st.integers(1, 3))
    def make_topic_again(self, topic: str, queues: int) -> None:
        self.bench.delete_topic(topic)
        for reader in self.readers.values():
            reader.delete_topic(topic)
        self.ends = {queue: end for queue, end in self.ends.items() if queue.topic != topic}
        self.look()
        self.bench.store.topics.create(Topic(topic, TopicType.NORMAL, queues, queues))
        self.look()

    @move(1, name=names)
    def make_group_again(self, name: str) -> None:
        self.bench.administration.delete_group(name)
        self.bench.end_pass()
        self.readers[name] = readers()[name]
        self._create_group(self.readers[name])
        self.look(self.readers[name])

    @move(1, name=names, topic=topics)
    def delete_subscription(self, name: str, topic: str) -> None:
        self.bench.delivery.delete_subscription(name, topic)
        self.bench.end_pass()
        self.readers[name].delete_topic(topic)
        self.look(self.readers[name])

    @move(3)
    def send_dead_letters_again(self) -> None:
        for reader in self.readers.values():
            self.bench.resend(reader.name)
            self.look(reader)

    @move(2, segments=st.integers(1, 3), others=st.integers(0, 8))
    def expire(self, segments: int, others: int) -> None:
        """Messages of another topic may fill what was begun."""
        self.bench.send([self._message("filler", 0, None, 9_000) for _ in range(others)])
        self.bench.expire(segments)
        self.look()

    # -- time, and the broker's lives

    @move(3, seconds=st.sampled_from((1, 6, 61, 400)))
    def advance(self, seconds: int) -> None:
        self.bench.advance(seconds)
        self.look()

    @move(1)
    def leave_memory(self) -> None:
        """Nobody has asked for long."""
        self.look_at_all()
        self.bench.drop_idle()
        self.look()

    @move(1)
    def stop_and_start(self) -> None:
        self.bench.stop()
        self.bench.begin()
        self.look()

    @move(1)
    def crash(self) -> None:
        self.bench.crash()
        self.bench.begin()
        self.look()

    # -- looking

    @move(1)
    def look_at_all(self) -> None:
        self._see()
        for reader in self._all_readers():
            self._checked(reader).all_of_it()
        self._check_metrics()

    def _check_metrics(self) -> None:
        expected: dict[tuple[str, str, bool], tuple[int, int, int, int]] = {}
        for reader in self._all_readers():
            expected.update(self._checked(reader).pairs())
        check_metrics(self.bench, expected)

    @rule(name=st.sampled_from(often), data=st.data())
    def go_on(self, name: str, data: st.DataObject) -> None:
        getattr(self, name)(**data.draw(terms_of[name], label=name))

    def look(self, *touched: Reader) -> None:
        """At the groups that were touched, or else at metrics, and at two groups in turn."""
        self._see()
        if not touched:
            self._check_metrics()
            every = self._all_readers()
            self.turn += 2
            touched = (every[self.turn % len(every)], every[(self.turn + 1) % len(every)])
        for reader in touched:
            self._checked(reader).all_of_it()

    def _all_readers(self) -> list[Reader]:
        return [*self.readers.values(), self.bots]

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            with self.ending:
                self.look_at_all()
                self.bench.stop()

    def _checked(self, reader: Reader) -> Checked:
        return Checked(self.bench, reader, self.queues)

    def _see(self) -> None:
        self.queues = self.bench.queues()
        for queue, messages in self.queues.items():
            self.ends[queue] = messages[-1].offset + 1
        self._know_the_buried()

    def _know_the_buried(self) -> None:
        """A group's dead letters tell what it was given as often as it may be."""
        queues = self.bench.queues()
        stored = rows.in_flight(self.bench.store.state_engine)
        for name in LIMITED:  # of others only those that a consumer has buried
            for each in queues.get(QueueId(f"%DLQ%{name}", 0), ()):
                if each.at >= self.buried_up_to:
                    self._is_buried(self.readers[name], each, {Place(*place) for place in stored.get(name, ())}, queues)
        self.buried_up_to = self.bench.store.messages.appended_up_to

    def _is_buried(
        self, reader: Reader, letter: Scanned, stored: set[Place], queues: Mapping[QueueId, list[Scanned]]
    ) -> None:
        """A message and its copy in a retry topic have one key: of two that it may be, rows tell."""
        key_of = {Place(queue, each.offset): each.key for queue, messages in queues.items() for each in messages}
        found = [
            place
            for place, given in reader.given.items()
            if key_of.get(place) == letter.key and given.attempt == reader.attempts_max
        ]
        if len(found) > 1:
            found = [place for place in found if place not in stored]
        assert len(found) == 1, f"{reader.name}: {letter.key} was buried, it may be one of {found}"
        reader.ends(found[0])

    def _topic(self, name: str) -> Topic:
        found = self.bench.store.topics.get(name)
        assert found is not None
        return found
