"""Administer topics, groups and offsets of a live broker. Plain calls on the event loop's thread; no wire types.

A change is durable when its call returns. That is an fdatasync on the loop's thread: some milliseconds during which
no message moves, which is the price of a rare call being simple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import structlog

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.protocol.names import is_system_group
from quarry_mq.server.delivery.model import Place, ResetTarget, StoredSince
from quarry_mq.server.errors import TooMuchForOneCall
from quarry_mq.server.metadata import queues_of_topic
from quarry_mq.server.tasks import TimeSlice
from quarry_mq.store.consumequeue.search import TimeBoundary
from quarry_mq.store.errors import Forbidden, GroupNotFound, Invalid, TopicNotFound
from quarry_mq.store.message import PhysicalOffset, QueueBounds, QueueId, QueueOffset
from quarry_mq.store.metadata import (
    Backoff,
    Group,
    GroupTable,
    Permission,
    Topic,
    TopicTable,
    TopicType,
    check_group_name,
)
from quarry_mq.store.metadata.lite import LiteGroup
from quarry_mq.store.metadata.topics import QUEUES_MAX, check_internal_topic_name
from quarry_mq.store.settings import Durability

log = structlog.get_logger(__name__)

RESET_QUEUES_MAX: Final = QUEUES_MAX
"""Queues in which one call moves a group's offsets; a job does it in any number of queues."""


class AdministeredStore(Protocol):
    """The part of the message store that administration uses."""

    @property
    def appended_up_to(self) -> PhysicalOffset: ...

    @property
    def flushed_up_to(self) -> PhysicalOffset: ...

    @property
    def dispatched_up_to(self) -> PhysicalOffset: ...

    def bounds(self, queue: QueueId) -> QueueBounds: ...

    def offset_at_time(self, queue: QueueId, time_ms: int, boundary: TimeBoundary) -> QueueOffset: ...

    def iterate_queues(self, topic: str | None = None) -> list[QueueId]: ...

    def delete_topic(self, topic: str) -> int: ...


class AdministeredDelivery(Protocol):
    """The part of delivery that administration uses."""

    def next_offset(self, group: str, queue: QueueId) -> QueueOffset | None: ...

    def reset_offset(self, group: str, queue: QueueId, offset: QueueOffset) -> None: ...

    def delete_group(self, group: str) -> None: ...

    def delete_topic(self, topic: str) -> None: ...

    def require_room(self) -> None: ...

    def store_durably(self) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerFacts:
    """The facts about a broker that do not change while it runs."""

    name: str
    cluster: str
    version: str
    advertised_address: str
    store_directory: str
    durability: Durability
    started_at_ms: int


class LogStats(NamedTuple):
    appended: PhysicalOffset
    flushed: PhysicalOffset
    dispatched: PhysicalOffset


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicChange:
    """The fields to set on a topic; None leaves a field as it is. An attribute with an empty value is removed."""

    type: TopicType | None = None
    read_queues: int | None = None
    write_queues: int | None = None
    permission: Permission | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def applied_to(self, topic: Topic) -> Topic:
        return replace(
            topic,
            type=topic.type if self.type is None else self.type,
            read_queues=topic.read_queues if self.read_queues is None else self.read_queues,
            write_queues=topic.write_queues if self.write_queues is None else self.write_queues,
            permission=topic.permission if self.permission is None else self.permission,
            attributes=_merged(topic.attributes, self.attributes),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupChange:
    """The fields to set on a group; None leaves a field as it is. An attribute with an empty value is removed."""

    fifo: bool | None = None
    max_attempts: int | None = None
    enabled: bool | None = None
    backoff: Backoff | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)

    def applied_to(self, group: Group) -> Group:
        return replace(
            group,
            fifo=group.fifo if self.fifo is None else self.fifo,
            max_attempts=group.max_attempts if self.max_attempts is None else self.max_attempts,
            enabled=group.enabled if self.enabled is None else self.enabled,
            backoff=group.backoff if self.backoff is None else self.backoff,
            attributes=_merged(group.attributes, self.attributes),
        )


class QueueReset(NamedTuple):
    """A group's next offset in one queue, before and after a reset. `previous` is None if the group never read it."""

    queue: QueueId
    previous: QueueOffset | None
    new: QueueOffset


class Administration:
    """The topics, groups, offsets and log positions of one open store."""

    def __init__(
        self,
        facts: BrokerFacts,
        *,
        topics: TopicTable,
        groups: GroupTable,
        store: AdministeredStore,
        delivery: AdministeredDelivery,
        default_queues: int,
        queues_deleted: Callable[[], None],
        lite_parent_deleted: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`queues_deleted` makes the deletion of queues durable: the log still has their messages.

        `lite_parent_deleted` is called with a topic whose lite topics are to be deleted.
        """
        self._lite_parent_deleted = lite_parent_deleted
        self._facts = facts
        self._topics = topics
        self._groups = groups
        self._store = store
        self._delivery = delivery
        self._default_queues = default_queues
        self._queues_deleted = queues_deleted

    def configure(self, *, default_queues: int) -> None:
        self._default_queues = default_queues

    @property
    def facts(self) -> BrokerFacts:
        return self._facts

    def log_stats(self) -> LogStats:
        store = self._store
        return LogStats(store.appended_up_to, store.flushed_up_to, store.dispatched_up_to)

    # Topics.

    def topic(self, name: str) -> Topic:
        """Return a topic. Raises TopicNotFound, or IllegalTopicName for a name that no topic can have."""
        topic = self._topics.get(name)
        if topic is None:
            check_internal_topic_name(name)
            raise TopicNotFound(f"no topic {name}")
        return topic

    def topics(self, prefix: str = "") -> Iterator[Topic]:
        """List topics in name order, the broker's own ones included."""
        return self._topics.list(prefix)

    def create_topic(self, name: str, wanted: TopicChange) -> Topic:
        """Create a topic. Fields that are None take the broker's defaults; one number of queues stands for both.

        Raises AlreadyExists, IllegalTopicName, or Invalid naming the field.
        """
        default = self._default_queues
        reading = next((each for each in (wanted.read_queues, wanted.write_queues) if each is not None), default)
        writing = next((each for each in (wanted.write_queues, wanted.read_queues) if each is not None), default)
        topic = wanted.applied_to(Topic(name, TopicType.NORMAL, reading, writing))
        self._topics.create(topic)
        log.info("topic created", topic=name, type=topic.type.value, queues=topic.write_queues)
        return topic

    def update_topic(self, name: str, change: TopicChange) -> Topic:
        """Change a topic. Raises TopicNotFound, Forbidden for the broker's own topics, or Invalid naming the field."""
        topic = change.applied_to(self._changeable_topic(name))
        self._topics.update(topic)
        log.info("topic updated", topic=name)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete the topic, its queues and all progress in it; its messages leave the log with their segments.

        Its lite topics are deleted soon after. A dead letter topic exists again, empty, as long as its group does.

        Raises TopicNotFound, or Forbidden for the broker's own topics.
        """
        topic = self._changeable_topic(name)
        # Progress and queues first: a broker that dies in between still knows the topic and can delete it again.
        self._delivery.delete_topic(name)
        self._store.delete_topic(name)
        if self._topics.stored(name) is not None:
            self._topics.delete(name)
        self._queues_deleted()
        if topic.type is TopicType.LITE:
            self._lite_parent_deleted(name)
        log.info("topic deleted", topic=name)

    def queues(self, topic_name: str) -> list[tuple[QueueId, QueueBounds]]:
        """Return every queue of the topic, also those that never got a message. Raises TopicNotFound."""
        return [(queue, self._store.bounds(queue)) for queue in self._queues_of(self.topic(topic_name))]

    # Groups.

    def group(self, name: str) -> Group:
        """Return a group. Raises GroupNotFound, or IllegalGroupName for a name that no group can have."""
        group = self._groups.get(name)
        if group is None:
            if not is_system_group(name):
                check_group_name(name)
            raise GroupNotFound(f"no group {name}")
        return group

    def groups(self, prefix: str = "") -> Iterator[Group]:
        """List groups in name order."""
        return self._groups.list(prefix)

    def create_group(self, name: str, wanted: GroupChange) -> Group:
        """Create a group. Raises AlreadyExists, IllegalGroupName, or Invalid naming the field."""
        group = wanted.applied_to(Group(name))
        self._require_lite_parent(group)
        self._groups.create(group)
        log.info("group created", group=name, fifo=group.fifo)
        return group

    def update_group(self, name: str, change: GroupChange) -> Group:
        """Change a group. It stays bound to its parent topic: its offsets mean nothing for lite topics of another one.

        Raises GroupNotFound, or Invalid naming the field.
        """
        before = self.group(name)
        group = change.applied_to(before)
        bound = LiteGroup.of(before)
        if bound is None:
            self._require_lite_parent(group)
        elif group.attributes.get(BIND_TOPIC) != bound.bind_topic:
            raise Invalid(
                f"group {name}: attribute {BIND_TOPIC} is {bound.bind_topic} and cannot change while the group exists"
            )
        self._groups.update(group)
        log.info("group updated", group=name)
        return group

    def delete_group(self, name: str) -> None:
        """Delete the group and its progress in all topics. Raises GroupNotFound, or Forbidden for the broker's own."""
        self.group(name)
        if is_system_group(name):
            raise Forbidden(f"group {name} is reserved for the broker")
        self._delivery.delete_group(name)
        self._groups.delete(name)
        log.info("group deleted", group=name)

    async def reset_offset(
        self,
        group_name: str,
        topic_name: str,
        to: ResetTarget,
        time_slice: TimeSlice,
        *,
        queue_number: int | None = None,
        dry_run: bool = False,
    ) -> list[QueueReset]:
        """Move a group's next offset, in one queue or all of the topic. An offset is clamped to the queue's bounds.

        Nothing is moved before all new offsets are known. The change is durable when this returns.

        Raises GroupNotFound or TopicNotFound, also for what is deleted meanwhile, or Invalid for a queue that the topic
        does not have; StoreDamaged when a record whose time is needed is damaged; StorePoisoned or kv.EngineFull when
        it cannot be stored.
        """
        self.group(group_name)
        resets = []
        for queue in self.queues_to_reset(topic_name, queue_number):
            resets.append(self.planned(group_name, queue, to))
            await time_slice.pause()
        if not dry_run:
            self._delivery.require_room()
            for reset in resets:
                self.group(group_name)
                self.topic(topic_name)
                self._delivery.reset_offset(group_name, reset.queue, reset.new)
                await time_slice.pause()
            self._delivery.store_durably()
            log.info("offset reset", group=group_name, topic=topic_name, queues=len(resets))
        return resets

    def queues_to_reset(self, topic_name: str, queue_number: int | None = None) -> list[QueueId]:
        """Return one queue of a topic or all, in order. Raises TopicNotFound, or Invalid if there is no such queue."""
        queues = self._queues_of(self.topic(topic_name))
        if queue_number is not None:
            queues = [queue for queue in queues if queue.number == queue_number]
            if not queues:
                raise Invalid(f"topic {topic_name} has no queue {queue_number}")
        return queues

    def planned(self, group_name: str, queue: QueueId, to: ResetTarget) -> QueueReset:
        """Return the offset to which a reset would move the group in a queue, or light queue. Raises StoreDamaged."""
        return QueueReset(queue, self._delivery.next_offset(group_name, queue), self._target(queue, to))

    def require_few(self, group_name: str, topic_name: str, queue_number: int | None = None) -> None:
        """Check that a single call may move the group. Raises TooMuchForOneCall, and as `reset_offset`."""
        bound = LiteGroup.of(self.group(group_name))
        if queue_number is not None:
            return
        if bound is not None and bound.bind_topic == topic_name:
            raise TooMuchForOneCall(
                f"group {group_name} reads lite topics of topic {topic_name}: start a job to reset them"
            )
        queues = len(self.queues_to_reset(topic_name))
        if queues > RESET_QUEUES_MAX:
            raise TooMuchForOneCall(
                f"topic {topic_name} has {queues} queues, and one call resets a group in at most {RESET_QUEUES_MAX}: "
                "start a job instead"
            )

    # Parts.

    def _require_lite_parent(self, group: Group) -> None:
        """Check the topic that a group is bound to: it may be created later, but must not be of another type."""
        bound = LiteGroup.of(group)
        topic = None if bound is None else self._topics.get(bound.bind_topic)
        if topic is not None and topic.type is not TopicType.LITE:
            raise Invalid(
                f"group {group.name}: attribute {BIND_TOPIC}: topic {topic.name} is of type {topic.type.value}"
            )

    def _changeable_topic(self, name: str) -> Topic:
        topic = self.topic(name)
        if topic.is_system:
            raise Forbidden(f"topic {name} is reserved for the broker")
        return topic

    def _queues_of(self, topic: Topic) -> list[QueueId]:
        return queues_of_topic(self._store, topic.name, topic.queue_count)

    def _target(self, queue: QueueId, to: ResetTarget) -> QueueOffset:
        bounds = self._store.bounds(queue)
        match to:
            case Place.EARLIEST:
                return bounds.minimum
            case Place.LATEST:
                return bounds.maximum
            case StoredSince(time_ms):
                return self._store.offset_at_time(queue, time_ms, TimeBoundary.LOWER)
            case int():
                return QueueOffset(min(max(to, bounds.minimum), bounds.maximum))


def _merged(attributes: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in {**attributes, **changes}.items() if value}
