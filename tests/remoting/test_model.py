"""Clients of both protocols, operators, restarts and kills in any order, against a plain model of what was promised.

No message is lost to a group, whichever protocol it uses and whenever it changes to the other one. A group goes on at
the first message that is not done. In each queue new messages come in their order, and none is left out. Lag equals a
count of the log's records. All of it holds after a stop and after the death of the process, at any moment.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.remoting.batches import BatchedMessage
from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.server.delivery.handles import ReceiptHandle
from quarry_mq.server.delivery.retry_topics import queue_of_handle
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import PhysicalOffset, QueueId, QueueOffset
from quarry_mq.store.metadata import Group, Topic, TopicType
from tests.conformance import broker as conformance
from tests.conformance.broker import PushedClock, run, running_broker, until
from tests.conformance.client import Client, consumer_settings, message, resource
from tests.conformance.official import official
from tests.lag.scan import Queues, Scanned, scan
from tests.remoting.client import RemotingClient, join_batch, records_in, send_fields
from tests.remoting.conftest import REMOTING, address_of
from tests.remoting.test_administration import table_of

TOPICS: Final = {"orders": 3, "bills": 1}
"""Says how many queues each topic has."""
GROUPS: Final = {"plain": False, "ordered": True, "other": False}
"""Tells whether each group gets messages in order by gRPC."""
INVISIBLE_S: Final = 20
SETTINGS: Final[Mapping[str, Mapping[str, object]]] = {
    "store": {"segment_size": 5 * 1024 * 1024},  # it is read again and again
    "remoting": REMOTING,
    "delivery": {"new_group_start": "earliest"},
}


@dataclass
class Progress:
    """Keeps a group's progress in a queue: the first offset that it never got, and what is in flight below that."""

    next: int = 0
    in_flight: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Has the handle by offset, and until when the message is hidden."""

    @property
    def first_open(self) -> int:
        return min(self.in_flight, default=self.next)

    def commit(self, offset: int) -> None:
        """All below is done. What is in flight above stays so, unless it was never handed out from now on."""
        is_rewind = offset < self.next
        self.in_flight = {at: row for at, row in self.in_flight.items() if at >= offset and not is_rewind}
        self.next = offset


@dataclass
class Position:
    """Keeps what a remoting consumer knows of a queue that it owns: where it reads on, and what is open below."""

    at: int
    opened: set[int] = field(default_factory=set)

    @property
    def done_below(self) -> int:
        return min(self.opened, default=self.at)


class Member:
    """Acts as a remoting consumer of a group, which does what RocketMQ's clients do when its test says so."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.positions: dict[QueueId, Position] = {}
        self.client: RemotingClient


class Retry(NamedTuple):
    """Names a message by its key, and says how often it was sent back."""

    key: str
    times: int


@dataclass
class GroupModel:
    """Keeps what a group was promised and what it has got."""

    name: str
    is_ordered: bool
    members: list[Member] = field(default_factory=list)
    progress: dict[QueueId, Progress] = field(default_factory=dict)
    done: dict[QueueId, set[int]] = field(default_factory=dict)
    """Has what consumers have consumed, or an operator has let the group pass over."""
    untold: set[QueueId] = field(default_factory=set)
    """Has the queues that an operator has moved, and whose owners have not been told."""
    retries: set[Retry] = field(default_factory=set)
    """Has what was sent back, to be consumed again."""
    retried: set[Retry] = field(default_factory=set)
    """Has what of these has been consumed."""
    client: Client | None = None
    """Is the consumer by gRPC, if the group has no members."""

    @property
    def topics(self) -> list[str]:
        return [*TOPICS, f"%RETRY%{self.name}"]

    def of(self, queue: QueueId) -> Progress:
        return self.progress.setdefault(queue, Progress())

    def drop(self, topic: str | None = None) -> None:
        """The topic, or the group itself, has been deleted."""
        for known in (self.progress, self.done):
            for queue in [each for each in known if topic in (None, each.topic)]:
                del known[queue]
        self.untold = {each for each in self.untold if topic not in (None, each.topic)}
        if topic is None:
            self.retries.clear()
            self.retried.clear()


class History:
    """Plays one history, in several lives of the broker. Everything that it does is drawn from its seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.lives = 0
        self.ahead_s = 0.0
        self.numbers = 0
        self.groups = {name: GroupModel(name, is_ordered) for name, is_ordered in GROUPS.items()}
        self.answered: dict[str, str] = {}
        """Has the topic of each message whose send was answered, by its key."""
        self.topics: dict[str, str] = {}
        """Has the same of all messages, also those of deleted topics."""
        self.pending: set[str] = set()
        """Has the keys of messages that wait for their time."""
        self.gone: dict[str, int] = {}
        """Says where in the log topics were deleted."""
        self.queues: Queues = {}

    # -- lives

    @property
    def store(self) -> Path:
        return self.directory / f"{self.lives}"

    async def live(self, patch: pytest.MonkeyPatch, steps: int, *, is_last: bool) -> None:
        """Start the broker, let things happen, and stop it or let it die."""

        def clock_of(clock: PushedClock) -> PushedClock:
            clock.push(self.ahead_s)
            return clock

        patch.setattr(conformance, "USED_CLOCK", clock_of)
        async with running_broker(self.store, patch, **SETTINGS) as self.broker:
            started_s = self.broker.clock._ahead_s
            await self.connect()
            for _ in range(steps):
                await self.step()
            if is_last:
                await self.finish()
            elif self.random.random() < 0.6:
                await self.die()
            self.ahead_s += self.broker.clock._ahead_s - started_s + 1
            await self.disconnect()

    async def connect(self) -> None:
        for name, queues in TOPICS.items():
            if self.broker.store.topics.get(name) is None:
                self.create_topic(name, queues)
        for group in self.groups.values():
            if self.broker.store.groups.get(group.name) is None:
                self.create_group(group)
        self.producer = await RemotingClient.connect(address_of(self.broker))
        self.grpc_producer = Client(self.broker.endpoint)
        for group in self.groups.values():
            group.untold.clear()  # the broker keeps that in memory alone
            for member in group.members:
                await self.join(group, member)
            if not group.members:
                await self.subscribe(group)
        await self.look()

    async def disconnect(self) -> None:
        for client in (self.producer, *(each.client for group in self.groups.values() for each in group.members)):
            await client.close()
        await self.grpc_producer.vanish()
        for group in self.groups.values():
            await self.unsubscribe(group)

    async def subscribe(self, group: GroupModel) -> None:
        """A consumer by gRPC comes."""
        group.client = Client(self.broker.endpoint)
        await group.client.declare(consumer_settings(group.name, *TOPICS))
        for queue in (each for topic in TOPICS for each in self.read_with(group, topic)):
            group.of(queue)  # a group begins where its first consumer says what it wants

    async def unsubscribe(self, group: GroupModel) -> None:
        if group.client is not None:
            await group.client.vanish()
            group.client = None

    async def die(self) -> None:
        """The process dies while sends and commits are under way: what is in the files is all that is left."""
        self.begin_sends()
        commits = [self.begin_commit(group) for group in self.groups.values() if group.members]
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(self.random.choice((0, 0, 0.001)))
        source, self.lives = self.store, self.lives + 1
        while True:
            try:
                shutil.copytree(source, self.store)
                break
            except shutil.Error:  # another thread has replaced a file meanwhile
                shutil.rmtree(self.store)
        self.in_doubt = [each for each in commits if each is not None]

    def begin_sends(self) -> None:
        for _ in range(self.random.randrange(4)):
            topic = self.random.choice(list(TOPICS))
            key = self.key()
            self.topics[key] = topic
            self.producer.begin(310, send_fields(topic, 0, UNIQ_KEY=key), b"x")

    def begin_commit(self, group: GroupModel) -> tuple[GroupModel, QueueId, int] | None:
        member = self.random.choice(group.members)
        if not member.positions:
            return None
        queue, position = self.random.choice(list(member.positions.items()))
        member.client.begin(15, commit_fields(group, queue, position.done_below))
        return group, queue, position.done_below

    in_doubt: Sequence[tuple[GroupModel, QueueId, int]] = ()

    def settle_doubt(self) -> None:
        """Take over the commits that were written before the process died."""
        for group, queue, offset in self.in_doubt:
            stored = self.broker.delivery.next_offset(group.name, queue)
            if queue not in group.untold and stored == offset:
                group.of(queue).commit(offset)
        self.in_doubt = ()

    # -- steps

    async def step(self) -> None:
        weights: dict[Callable[[], Any], int] = {
            self.send_by_remoting: 8,
            self.send_by_grpc: 6,
            self.consume: 16,
            self.change_members: 4,
            self.move: 3,
            self.reset: 2,
            self.pass_time: 4,
            self.delete_topic: 1,
            self.delete_group: 1,
        }
        await self.random.choices(list(weights), list(weights.values()))[0]()
        await self.look()

    def group(self) -> GroupModel:
        return self.random.choice(list(self.groups.values()))

    def key(self) -> str:
        self.numbers += 1
        return f"m{self.numbers}"

    async def send_by_remoting(self) -> None:
        topic = self.random.choice(list(TOPICS))
        queue = self.random.randrange(TOPICS[topic])
        if self.random.random() < 0.3:
            keys = [self.key() for _ in range(3)]
            batch = [BatchedMessage(0, b"x", b"UNIQ_KEY\x01" + key.encode()) for key in keys]
            answer = await self.producer.call(320, send_fields(topic, queue), join_batch(batch))
        else:
            keys = [self.key()]
            level = {"DELAY": "1"} if self.random.random() < 0.2 else {}
            self.pending.update(keys if level else ())
            answer = await self.producer.send(topic, b"x", queue, UNIQ_KEY=keys[0], **level)
        assert answer.code == ResponseCode.SUCCESS, answer
        self.answered.update(dict.fromkeys(keys, topic))
        self.topics.update(self.answered)

    async def send_by_grpc(self) -> None:
        topic = self.random.choice(list(TOPICS))
        terms = {"message_group": "one", "message_type": definition.FIFO} if self.random.random() < 0.5 else {}
        for _ in range(self.random.randrange(1, 4)):
            key = self.key()
            await self.grpc_producer.sent(message(topic, b"x", message_id=key, **terms))
            self.answered[key] = self.topics[key] = topic

    async def consume(self) -> None:
        group = self.group()
        await self.consume_some(group)

    async def consume_some(self, group: GroupModel, *, all_of_it: bool = False) -> int:
        """Let a consumer of the group get and consume something. Return how many messages it got."""
        if not group.members:
            return sum([await self.receive(group, topic, all_of_it=all_of_it) for topic in TOPICS])
        members = group.members if all_of_it else [self.random.choice(group.members)]
        return sum([await self.pull_all(group, member, all_of_it=all_of_it) for member in members])

    async def change_members(self) -> None:
        """A remoting consumer comes, or one goes: in order, or by its death."""
        group = self.group()
        if not group.members:
            return
        if len(group.members) == 1 or self.random.random() < 0.5:
            await self.add_member(group)
        else:
            await self.remove_member(group)

    async def add_member(self, group: GroupModel) -> None:
        member = Member(f"client{self.random.randrange(1_000_000)}")
        await self.join(group, member)
        group.members.append(member)

    async def join(self, group: GroupModel, member: Member) -> None:
        member.client = await RemotingClient.connect(address_of(self.broker))
        await self.heartbeat(group, member)

    async def heartbeat(self, group: GroupModel, member: Member) -> None:
        answer = await member.client.heartbeat(group.name, *group.topics, client_id=member.client_id)
        assert answer.code == ResponseCode.SUCCESS

    async def remove_member(self, group: GroupModel) -> None:
        member = group.members.pop(self.random.randrange(len(group.members)))
        if self.random.random() < 0.6:
            for queue in list(member.positions):
                await self.commit(group, member, queue)
            await member.client.call(35, {"clientID": member.client_id, "consumerGroup": group.name})
        await member.client.close()
        known = self.broker.broker._remoting.sessions.consumers
        await until(lambda: len(getattr(known(group.name), "members", ())) == len(group.members), "it is gone")
        if not group.members:
            group.untold.clear()
            resets = self.broker.broker._remoting._pulls._resets
            await until(lambda: group.name not in resets, "nobody is left to be told")

    async def move(self) -> None:
        """All consumers of a group are replaced by some of the other protocol."""
        group = self.group()
        if group.members:
            while group.members:
                await self.remove_member(group)
            await self.subscribe(group)
        else:
            await self.unsubscribe(group)
            for _ in range(self.random.randrange(1, 3)):
                await self.add_member(group)

    async def pass_time(self, seconds: float | None = None) -> None:
        for group in self.groups.values():
            for member in group.members:
                await self.heartbeat(group, member)
        self.broker.pass_time(seconds or self.random.choice((1.1, 5, INVISIBLE_S + 1)))
        await asyncio.sleep(0.01)

    # -- operators

    async def reset(self) -> None:
        group, topic = self.group(), self.random.choice(list(TOPICS))
        number = self.random.randrange(TOPICS[topic])
        wanted = self.random.randrange(6)
        fields = {"topic": topic, "group": group.name, "timestamp": 0, "isForce": "true", "offset": wanted}
        answer = await self.producer.call(222, {**fields, "queueId": number})
        assert answer.code == ResponseCode.SUCCESS, answer
        queue = QueueId(topic, number)
        new = min(wanted, self.end(queue))
        progress = group.of(queue)
        group.done.setdefault(queue, set()).update(range(progress.first_open, new))
        progress.next = new
        progress.in_flight.clear()
        if group.members:
            group.untold.add(queue)

    async def delete_topic(self) -> None:
        topic = self.random.choice(list(TOPICS))
        assert (await self.producer.call(215, {"topic": topic})).code == ResponseCode.SUCCESS
        self.gone[topic] = self.broker.store.messages.appended_up_to
        for key in [key for key, of in self.answered.items() if of == topic]:
            del self.answered[key]
            self.pending.discard(key)
        for group in self.groups.values():
            group.drop(topic)
            group.retries = {each for each in group.retries if self.topics[each.key] != topic}
            for member in group.members:  # its waiting pulls are told that their offsets have moved
                member.positions = {queue: at for queue, at in member.positions.items() if queue.topic != topic}
        # a crash before the queues are flushed may bring the messages back: docs/faults.md
        assert await self.broker.broker._commit.make_queues_durable()
        self.create_topic(topic, TOPICS[topic])

    def create_topic(self, name: str, queues: int) -> None:
        self.broker.store.topics.create(Topic(name, TopicType.MIXED, queues, queues))

    async def delete_group(self) -> None:
        """A group without consumers is deleted, and is a new one when it consumes again."""
        group = self.group()
        await self.unsubscribe(group)
        while group.members:
            await self.remove_member(group)
        assert (await self.producer.call(207, {"groupName": group.name})).code == ResponseCode.SUCCESS
        self.create_group(group)
        group.drop()
        await self.subscribe(group)

    def create_group(self, group: GroupModel) -> None:
        self.broker.store.groups.create(Group(group.name, fifo=group.is_ordered, max_attempts=1_000))

    # -- consumers by remoting

    async def pull_all(self, group: GroupModel, member: Member, *, all_of_it: bool) -> int:
        """Share the queues out, as every client does by itself, and read on in each own queue."""
        listed = json.loads((await member.client.call(38, {"consumerGroup": group.name})).body)["consumerIdList"]
        assert listed == sorted(each.client_id for each in group.members)
        own = set(shared_out(group, listed, member.client_id))
        for queue in sorted(set(member.positions) - own):
            await self.commit(group, member, queue)
            del member.positions[queue]
        count = 0
        for queue in sorted(own):
            if queue not in member.positions:
                answer = await member.client.call(14, place_fields(group, queue))
                expected = Progress() if queue not in group.progress else group.progress[queue]
                if not is_retry(queue):
                    assert answer.fields == {"offset": str(expected.first_open)}, (group, queue)
                member.positions[queue] = Position(int(answer.fields["offset"]))
            count += await self.pull(group, member, queue, all_of_it=all_of_it)
        return count

    async def pull(self, group: GroupModel, member: Member, queue: QueueId, *, all_of_it: bool) -> int:
        position = member.positions[queue]
        most = 32 if all_of_it else self.random.randrange(1, 6)
        terms: dict[str, object] = {"group": group.name, "most": most}
        commits = position.done_below > 0 and self.random.random() < 0.5
        if commits:
            terms |= {"flags": 5, "commit": position.done_below}
        visible_up_to = self.broker.store.messages.dispatched_up_to
        answer = await member.client.pull(queue.topic, position.at, queue.number, **terms)
        await self.read_log()
        if queue in group.untold:
            group.untold.discard(queue)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
            assert int(answer.fields["nextBeginOffset"]) == group.of(queue).next
            member.positions[queue] = Position(group.of(queue).next)
            return 1
        if commits:
            group.of(queue).commit(min(position.done_below, self.end(queue)))
        end = self.end(queue)
        if position.at > end:  # the topic is another one
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            member.positions[queue] = Position(end)
            return 1
        found = records_in(answer.body)
        expected = self.queues.get(queue, [])[position.at : position.at + most]
        places = [(each.offset, each.key) for each in expected]
        assert [(each.queue_offset, each.properties["UNIQ_KEY"]) for each in found] == places[: len(found)]
        assert len(found) >= sum(each.at < visible_up_to for each in expected), f"{queue}: {answer}, {expected}"
        position.at += len(found)
        position.opened.update(each.queue_offset for each in found)
        again = sorted(position.opened)
        for offset in again:
            chance = 1.0 if all_of_it else self.random.random()
            if chance < 0.2:
                continue
            if chance < 0.35 and not group.is_ordered:
                await self.send_back(group, member, queue, offset)
            self.consumed(group, queue, offset)
            position.opened.discard(offset)
        if all_of_it or self.random.random() < 0.7:
            await self.commit(group, member, queue)
        return len(again)

    async def send_back(self, group: GroupModel, member: Member, queue: QueueId, offset: int) -> None:
        record = self.queues[queue][offset]
        fields = {"group": group.name, "offset": record.at, "delayLevel": 1, "originTopic": queue.topic}
        assert (await member.client.call(36, fields)).code == ResponseCode.SUCCESS
        group.retries.add(self.retry_of(record)._replace(times=self.retry_of(record).times + 1))

    def retry_of(self, record: Scanned) -> Retry:
        times = self.broker.store.messages.record_at(PhysicalOffset(record.at)).reconsume_times
        return Retry(record.key, times)

    def consumed(self, group: GroupModel, queue: QueueId, offset: int) -> None:
        group.done.setdefault(queue, set()).add(offset)
        if is_retry(queue):
            group.retried.add(self.retry_of(self.queues[queue][offset]))

    async def commit(self, group: GroupModel, member: Member, queue: QueueId) -> None:
        offset = member.positions[queue].done_below
        answer = await member.client.call(15, commit_fields(group, queue, offset))
        assert answer.code == ResponseCode.SUCCESS, answer
        if queue not in group.untold:
            group.of(queue).commit(min(offset, self.end(queue)))

    # -- consumers by gRPC

    async def receive(self, group: GroupModel, topic: str, *, all_of_it: bool) -> int:
        count = 32 if all_of_it else self.random.randrange(1, 6)
        now_ms = self.broker.clock.wall_ms()
        assert group.client is not None
        self.take_moves(group)
        received = await group.client.receive(group.name, topic, count=count, invisible_s=INVISIBLE_S)
        await self.read_log()
        assert received.code in (definition.OK, definition.MESSAGE_NOT_FOUND), received.status
        for queue in self.read_with(group, topic):  # whoever asks for messages has read the topic
            group.of(queue)
        hidden_until_ms = self.broker.clock.wall_ms() + INVISIBLE_S * 1000
        blocked = {
            queue
            for queue, progress in group.progress.items()
            if group.is_ordered and any(until_ms > hidden_until_ms for _, until_ms in progress.in_flight.values())
        }
        for each in received.messages:
            queue, offset = self.place_of(group, topic, each.system_properties.receipt_handle)
            progress = group.of(queue)
            assert queue not in blocked
            if offset in progress.in_flight:
                assert progress.in_flight[offset][1] <= now_ms + 1_000, "two consumers have it"
            else:
                assert offset == progress.next, f"{queue}: {offset} instead of {progress.next}"
                progress.next += 1
            assert each.system_properties.message_id == self.queues[queue][offset].key
            progress.in_flight[offset] = each.system_properties.receipt_handle, hidden_until_ms
        for queue, progress in group.progress.items():
            for offset, (handle, until_ms) in sorted(progress.in_flight.items()):
                if until_ms <= now_ms + 5_000 or (not all_of_it and self.random.random() < 0.5):
                    continue
                if queue.topic == topic or queue.topic.endswith(topic):
                    await self.acknowledge(group, topic, handle, queue, offset)
        return len(received.messages)

    async def acknowledge(self, group: GroupModel, topic: str, handle: str, queue: QueueId, offset: int) -> None:
        assert group.client is not None
        answer = await group.client.ack(group.name, topic, handle)
        del group.of(queue).in_flight[offset]
        if is_retry(queue) and answer.status.code == definition.INVALID_RECEIPT_HANDLE:
            return  # it was moved for consumers by remoting, who were there meanwhile
        assert answer.status.code == definition.OK, answer
        self.consumed(group, queue, offset)

    def place_of(self, group: GroupModel, topic: str, handle: str) -> tuple[QueueId, int]:
        decoded = ReceiptHandle.decode(handle, group.name, topic, self.broker.delivery.handle_key)
        return QueueId(*queue_of_handle(group.name, topic, decoded.queue_number)), decoded.queue_offset

    # -- looking

    def end(self, queue: QueueId) -> int:
        return len(self.queues.get(queue, ()))

    async def look(self) -> None:
        """Read the log, and compare the lag of a group with it."""
        await self.read_log()
        self.settle_doubt()
        self.check_sent()
        await self.check_lag(self.group())

    async def read_log(self) -> None:
        """Wait until all that is in the log can be seen, and read it."""
        messages = self.broker.store.messages
        await until(lambda: messages.dispatched_up_to >= messages.appended_up_to, "all is dispatched")
        if self.read_up_to != (self.lives, messages.appended_up_to, dict(self.gone)):
            self.queues = scan(PosixDisk(), self.store / "store" / "commitlog", self.gone)
            self.read_up_to = self.lives, messages.appended_up_to, dict(self.gone)

    read_up_to: tuple[int, int, dict[str, int]] | None = None

    def check_sent(self) -> None:
        places = {each.key: queue for queue, found in self.queues.items() for each in found if queue.topic in TOPICS}
        self.pending -= set(places)
        for key, topic in self.answered.items():
            assert key in self.pending or places[key].topic == topic, f"{key} is lost"
        for queue in self.queues:
            if queue.topic in TOPICS:
                sent = [int(each.key[1:]) for each in self.queues[queue]]
                assert len(set(sent)) == len(sent)

    async def check_lag(self, group: GroupModel) -> None:
        """Compare until nothing is delivered meanwhile: messages with a delay come by themselves."""
        while True:
            await self.read_log()
            self.take_moves(group)
            before = self.read_up_to, repr(group)
            told = await self.told_lag(group)
            await self.read_log()
            self.take_moves(group)
            if (self.read_up_to, repr(group)) == before:
                break
        self.compare_lag(group, *told)

    async def told_lag(self, group: GroupModel) -> tuple[pb.DescribeGroupAccumulationResponse, bytes]:
        async with official(self.broker) as admin:
            answer = await admin.DescribeGroupAccumulation(
                pb.DescribeGroupAccumulationRequest(group=resource(group.name))
            )
        return answer, (await self.producer.call(208, {"consumerGroup": group.name})).body

    def compare_lag(
        self, group: GroupModel, answer: pb.DescribeGroupAccumulationResponse, consume_stats: bytes
    ) -> None:
        has_read = any(queue.topic in TOPICS for queue in group.progress)
        assert has_read <= (answer.status.code == definition.OK), (group, answer)
        told = {
            topic: (each.ready_messages, each.inflight_messages) for topic, each in answer.topic_accumulation.items()
        }
        rows = table_of(consume_stats)
        for topic in TOPICS:
            if topic in told:
                read = list(self.read_with(group, topic))
                ready = sum(self.end(queue) - group.of(queue).next for queue in read)
                in_flight = sum(len(group.of(queue).in_flight) for queue in read)
                assert told[topic] == (ready, in_flight), f"{topic}: {told[topic]}, {(ready, in_flight)}, {group}"
        for (topic, number), row in rows.items():
            queue = QueueId(topic, number)
            progress = group.of(queue)
            assert (row["brokerOffset"], row["consumerOffset"], row["pullOffset"]) == (
                self.end(queue), progress.first_open, progress.next,
            ), f"{queue}: {row}, {group}"  # fmt: skip

    def take_moves(self, group: GroupModel) -> None:
        """Take over how far the broker has moved retries, which it does by itself; that none is lost shows later."""
        for queue in [QueueId(f"%RETRY%{group.name}", 0), *self.queues]:
            if queue.topic.startswith(f"%RETRY%{group.name}"):
                group.of(queue)
        for queue, progress in group.progress.items():
            if is_retry(queue):
                next_offset, delivery = self.broker.delivery.next_offset(group.name, queue), self.broker.delivery
                progress.next = progress.next if next_offset is None else max(progress.next, next_offset)
                delivery.writer.write_now()
                for offset in list(progress.in_flight):
                    if delivery.first_in_flight(group.name, queue, QueueOffset(offset)) != offset:
                        del progress.in_flight[offset]

    def read_with(self, group: GroupModel, topic: str) -> Iterator[QueueId]:
        """Yield the queues of a topic, and of the group's retry topics for it by gRPC."""
        for number in range(TOPICS[topic]):
            yield QueueId(topic, number)
        for separator in "_+":
            queue = QueueId(f"%RETRY%{group.name}{separator}{topic}", 0)
            if queue in self.queues:
                yield queue

    async def finish(self) -> None:
        """Every group gets through all there is."""
        for group in self.groups.values():
            if group.client is not None:  # its connection may have been silent for too long
                await self.unsubscribe(group)
                await self.subscribe(group)
            for _ in range(100):
                await self.pass_time(INVISIBLE_S + 2)
                await asyncio.sleep(0.1)
                await self.look()
                if not await self.consume_some(group, all_of_it=True):
                    break
            else:
                raise AssertionError("it does not come to an end")
            await self.check_lag(group)
            for topic in TOPICS:
                for number in range(TOPICS[topic]):
                    queue = QueueId(topic, number)
                    assert group.done.get(queue, set()) >= set(range(self.end(queue))), (group, queue)
            assert group.retried >= group.retries, f"{group.name}: retries are lost"
        assert not self.pending


def is_retry(queue: QueueId) -> bool:
    return queue.topic.startswith("%RETRY%")


def commit_fields(group: GroupModel, queue: QueueId, offset: int) -> dict[str, object]:
    return {**place_fields(group, queue), "commitOffset": offset}


def place_fields(group: GroupModel, queue: QueueId) -> dict[str, object]:
    return {"consumerGroup": group.name, "topic": queue.topic, "queueId": queue.number}


def shared_out(group: GroupModel, client_ids: Sequence[str], own: str) -> Iterator[QueueId]:
    """Yield the queues of one client: each gets as many as the others, of each topic."""
    for topic in group.topics:
        queues = [QueueId(topic, number) for number in range(TOPICS.get(topic, 1))]
        for at, queue in enumerate(queues):
            if client_ids[at * len(client_ids) // len(queues) if len(queues) >= len(client_ids) else at] == own:
                yield queue


def play(seed: int, directory: Path, patch: pytest.MonkeyPatch, *, lives: int, steps: int) -> None:
    history = History(seed, directory / f"{seed}")
    for life in range(lives):
        try:
            run(history.live(patch, steps, is_last=life == lives - 1))
        except BaseException as error:
            error.add_note(f"seed {seed}, life {life}")
            raise
        finally:
            patch.undo()


def test_random_histories_break_no_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(4, tmp_path, monkeypatch, lives=2, steps=25)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("part", range(4))
def test_many_random_histories_break_no_promise(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(part * 100, part * 100 + 60):
        play(seed, tmp_path, monkeypatch, lives=4, steps=30)
        shutil.rmtree(tmp_path / f"{seed}")
