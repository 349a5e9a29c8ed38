"""The connected remoting clients: producers and consumers by group, their subscriptions, and their queue locks.

Clients say who they are in heartbeats, every 30 s to every broker. A client belongs to a group as long as its
connection is open and its last heartbeat is at most `SILENT_S` old. When the consumers of a group change, the broker
tells all of them, and they share the queues out among themselves: each client asks for the list of all, and takes its
part of it. So the list holds every client whose heartbeat was answered.

Consumers by gRPC are not in these lists. They own no queues, and remoting clients would leave queues to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.codes import RequestCode
from quarry_mq.protocol.remoting.frames import Language
from quarry_mq.server.delivery.model import Timers
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.front.remoting import RemotingConnection

SILENT_S: Final = 120.0
"""Seconds without a heartbeat after which a client does not belong to its groups any more, as in RocketMQ."""

NOTIFY_S: Final = 0.0001
"""Seconds for each consumer of a group after a change until they are told of it, and of all changes meanwhile: about
the CPU time that it costs to tell one.

Until then two consumers may read the same queue, and both get its messages. So a small group must not wait.
"""

NOTIFY_MAX_S: Final = 0.1
"""Most seconds from a change of a group's consumers until they are told of it."""

SUBSCRIPTIONS_SIZE_MAX: Final = 64 * 1024 * 1024
"""Characters of the topics and expressions that all clients together may subscribe to."""

GROUPS_PER_CLIENT_MAX: Final = 4_096
"""Groups that one connection may register: an application with more uses several client instances."""


class Subscription(NamedTuple):
    """A subscription is what a consumer group wants of one topic."""

    expression: str
    expression_type: str
    version: int


class Heartbeat(NamedTuple):
    """A heartbeat is what a client says of one of its consumer groups."""

    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription]


class ClientInfo(NamedTuple):
    """The info is what is known of a client on one connection."""

    client_id: str
    language: Language
    version: int
    seen_s: float
    seen_ms: int


class ListedClient(NamedTuple):
    """A listed client is one membership of a client in a group. Producers do not say which topics they send to."""

    client: ClientInfo
    peer: str
    group: str
    topics: Sequence[str]
    is_producer: bool


Members = dict[RemotingConnection, ClientInfo]


@dataclass(slots=True)
class ConsumerGroup:
    """The remoting consumers of one group. All of them should say the same.

    The latest heartbeat counts, and of each topic the subscription with the highest version, as in RocketMQ. A client
    takes a new version whenever its queues change, and all clients of the group pull with their own version. So the
    later heartbeat of a client whose queues have stayed the same must not take a version back.
    """

    heartbeat: Heartbeat
    members: Members = field(default_factory=dict)
    _client_ids: list[str] | None = None
    """The result of `client_ids`, until a client comes or goes: each of a thousand clients asks for all of them."""

    @property
    def is_broadcasting(self) -> bool:
        """Return whether each consumer gets all messages; then consumers share nothing out."""
        return self.heartbeat.message_model == "BROADCASTING"

    @property
    def client_ids(self) -> list[str]:
        """Return the ids of the consumers, in the order of their names."""
        if self._client_ids is None:
            self._client_ids = sorted({each.client_id for each in self.members.values()})
        return self._client_ids

    def changed(self) -> None:
        """Note that a client has come, has gone, or has another id."""
        self._client_ids = None


class RemotingSessions:
    """All groups with connected remoting clients. It lives on the event loop's thread."""

    def __init__(self, clock: Clock, timers: Timers, *, topics_max: Callable[[], int]) -> None:
        """`topics_max` returns how many subscriptions all clients together may have."""
        self._clock = clock
        self._timers = timers
        self._topics_max = topics_max
        self._changed: set[str] = set()
        """The groups whose consumers are about to be told of each other."""
        self._producers: dict[str, Members] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[RemotingConnection, set[tuple[bool, str]]] = {}
        """The groups of each registered connection, with whether it is a producer group."""
        self._producers_by_id: dict[str, dict[RemotingConnection, int]] = {}
        """The connections of each producer by its client id, with the number of groups there."""
        self._subscriptions = 0
        self._subscriptions_size = 0

    # -- heartbeats

    def info(self, client_id: str, language: Language, version: int) -> ClientInfo:
        """Return a client as it is seen now."""
        return ClientInfo(client_id, language, version, self._clock.monotonic_s(), self._clock.wall_ms())

    def register_producer(self, connection: RemotingConnection, group: str, client: ClientInfo) -> None:
        """Note that the client produces in a group. Raises OverLimit."""
        self._make_room(connection, (True, group))
        members = self._producers.setdefault(group, {})
        before = members.get(connection)
        self._attach(connection, (True, group), members, client)
        if before is None or before.client_id != client.client_id:
            self._count_groups(client.client_id, connection, 1)
            if before is not None:
                self._count_groups(before.client_id, connection, -1)

    def register_consumer(
        self, connection: RemotingConnection, group: str, client: ClientInfo, heartbeat: Heartbeat | None
    ) -> None:
        """Note that the client consumes in a group; without a `heartbeat` what is known of the group stays.

        The consumers of the group are told if there is a new one, or if the subscriptions have changed.
        Raises OverLimit.
        """
        self._make_room(connection, (False, group))
        known = self._consumers.get(group)
        if heartbeat is None:
            if known is not None and self._attach_consumer(connection, group, known, client):
                self._notify(group, known)
            return
        before: Mapping[str, Subscription] = {} if known is None else known.heartbeat.subscriptions
        heartbeat = heartbeat._replace(subscriptions=_newest(before, heartbeat.subscriptions))
        grown = len(heartbeat.subscriptions) - len(before)
        if grown > 0 and self._subscriptions + grown > self._topics_max():
            raise OverLimit("client_topics", f"all clients together already have {self._subscriptions} subscriptions")
        size = _size_of(heartbeat.subscriptions) - _size_of(before)
        if size > 0 and self._subscriptions_size + size > SUBSCRIPTIONS_SIZE_MAX:
            raise OverLimit(
                "client_topics", f"all subscriptions together already have {self._subscriptions_size} characters"
            )
        if known is None:
            known = self._consumers[group] = ConsumerGroup(heartbeat)
            has_changed = True
        else:
            has_changed = _without_versions(known.heartbeat) != _without_versions(heartbeat)
            known.heartbeat = heartbeat
        self._subscriptions += grown
        self._subscriptions_size += size
        if self._attach_consumer(connection, group, known, client) or has_changed:
            self._notify(group, known)

    def _attach_consumer(
        self, connection: RemotingConnection, group: str, known: ConsumerGroup, client: ClientInfo
    ) -> bool:
        """Add or renew a consumer; return whether it is new."""
        before = known.members.get(connection)
        if before is None or before.client_id != client.client_id:
            known.changed()
        return self._attach(connection, (False, group), known.members, client)

    def _make_room(self, connection: RemotingConnection, group: tuple[bool, str]) -> None:
        groups = self._groups_of.get(connection)
        if groups is not None and group not in groups and len(groups) >= GROUPS_PER_CLIENT_MAX:
            raise OverLimit("clients", f"the client is already registered in {len(groups)} groups")

    def _attach(
        self, connection: RemotingConnection, group: tuple[bool, str], members: Members, client: ClientInfo
    ) -> bool:
        """Add or renew a member; return whether it is new."""
        is_new = connection not in members
        if is_new:
            groups = self._groups_of.get(connection)
            if groups is None:
                groups = self._groups_of[connection] = set()
                connection.lost[self] = lambda: self.lost(connection)
                connection.is_registered = True
            groups.add(group)
        members[connection] = client
        return is_new

    # -- ends

    def unregister_producer(self, connection: RemotingConnection, group: str) -> None:
        """Remove the client on this connection from a producer group. Does nothing if it is not in it."""
        members = self._producers.get(group, {})
        client = members.pop(connection, None)
        if client is not None:
            self._detached(connection, (True, group))
            self._count_groups(client.client_id, connection, -1)
        if not members:
            self._producers.pop(group, None)

    def _count_groups(self, client_id: str, connection: RemotingConnection, change: int) -> None:
        """Count the producer groups in which a connection has this client id."""
        connections = self._producers_by_id.setdefault(client_id, {})
        connections[connection] = connections.get(connection, 0) + change
        if not connections[connection]:
            del connections[connection]
        if not connections:
            del self._producers_by_id[client_id]

    def unregister_consumer(self, connection: RemotingConnection, group: str) -> None:
        """Remove the client on this connection from a consumer group, and tell the others."""
        known = self._consumers.get(group)
        if known is None:
            return
        if known.members.pop(connection, None) is None:
            return
        known.changed()
        self._detached(connection, (False, group))
        if not known.members:
            del self._consumers[group]
            self._subscriptions -= len(known.heartbeat.subscriptions)
            self._subscriptions_size -= _size_of(known.heartbeat.subscriptions)
        self._notify(group, known)

    def _detached(self, connection: RemotingConnection, group: tuple[bool, str]) -> None:
        groups = self._groups_of[connection]
        groups.discard(group)
        if not groups and not connection.is_closed:
            del self._groups_of[connection]
            connection.is_registered = False

    def lost(self, connection: RemotingConnection) -> None:
        """Remove all registrations of a connection that has ended."""
        for is_producer, group in tuple(self._groups_of.get(connection, ())):
            if is_producer:
                self.unregister_producer(connection, group)
            else:
                self.unregister_consumer(connection, group)
        self._groups_of.pop(connection, None)

    def sweep(self) -> None:
        """Close the connections of clients that have sent no heartbeat for too long; to be called every few seconds."""
        silent_since_s = self._clock.monotonic_s() - SILENT_S
        members = [*self._producers.values(), *(each.members for each in self._consumers.values())]
        silent = {
            connection for each in members for connection, client in each.items() if client.seen_s <= silent_since_s
        }
        for connection in silent:
            connection.close("no heartbeat")

    # -- what is asked

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Return the remoting consumers of a group; None if there are none."""
        return self._consumers.get(group)

    def producers(self, group: str) -> Mapping[RemotingConnection, ClientInfo]:
        """Return the remoting producers of a group."""
        return self._producers.get(group, {})

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups with remoting consumers that subscribe to the topic."""
        return [group for group, known in self._consumers.items() if topic in known.heartbeat.subscriptions]

    def consumer(self, group: str, client_id: str) -> RemotingConnection | None:
        """Return the connection of a consumer of the group; None without one."""
        known = self._consumers.get(group)
        members = {} if known is None else known.members
        return next((each for each, client in members.items() if client.client_id == client_id), None)

    def producer(self, client_id: str) -> RemotingConnection | None:
        """Return a connection on which the client produces, in whatever group; None without one."""
        return next(reversed(self._producers_by_id.get(client_id, {})), None)

    def listed(self) -> Iterator[ListedClient]:
        """Iterate over all clients, once for each of their groups."""
        for group, known in tuple(self._consumers.items()):
            topics = tuple(known.heartbeat.subscriptions)
            for connection, client in tuple(known.members.items()):
                yield ListedClient(client, connection.peer, group, topics, is_producer=False)
        for group, members in tuple(self._producers.items()):
            for connection, client in tuple(members.items()):
                yield ListedClient(client, connection.peer, group, (), is_producer=True)

    def subscriptions(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Iterate over the groups whose consumers share their messages, with the topics that they subscribe to."""
        for group, known in self._consumers.items():
            if not known.is_broadcasting:
                yield group, tuple(known.heartbeat.subscriptions)

    def consumers_in(self, group: str, topic: str) -> int:
        """Count the remoting consumers of the group, if the group subscribes to the topic."""
        known = self._consumers.get(group)
        return len(known.members) if known is not None and topic in known.heartbeat.subscriptions else 0

    def _notify(self, group: str, known: ConsumerGroup) -> None:
        """Tell the consumers of a group soon to share the queues out again.

        The wait grows with the group: three consumers that start one after the other are told of each. If a thousand
        start together, each is told a few times, and not once for each other one.
        """
        if not known.is_broadcasting and group not in self._changed:
            self._changed.add(group)
            wait_s = min(len(known.members) * NOTIFY_S, NOTIFY_MAX_S)
            self._timers.call_later(wait_s, lambda: self._tell(group))

    def _tell(self, group: str) -> None:
        self._changed.discard(group)
        known = self._consumers.get(group)
        for connection in () if known is None else tuple(known.members):
            connection.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})


def _size_of(subscriptions: Mapping[str, Subscription]) -> int:
    return sum(len(topic) + len(each.expression) + len(each.expression_type) for topic, each in subscriptions.items())


def _newest(before: Mapping[str, Subscription], now: Mapping[str, Subscription]) -> Mapping[str, Subscription]:
    """Return the subscriptions to the topics of `now`, each with the higher of its two versions."""
    return {topic: max(each, before.get(topic, each), key=lambda it: it.version) for topic, each in now.items()}


def _without_versions(heartbeat: Heartbeat) -> Mapping[str, tuple[str, str]]:
    """Return the subscriptions as they filter: a client that starts again has another version of the same."""
    return {topic: (each.expression, each.expression_type) for topic, each in heartbeat.subscriptions.items()}


LOCK_S: Final = 60.0
"""Seconds for which a lock that is not renewed keeps its queue from other clients, as in RocketMQ."""

LOCKS_PER_GROUP_MAX: Final = 65_536
"""Queues of one group that may be locked at the same time."""

LOCKS_MAX: Final = 250_000
"""Queues of all groups together that may be locked at the same time: a lock takes some 300 bytes."""

QueueKey = tuple[str, int]
"""A topic and the number of one of its queues."""


class QueueLocks:
    """The queues that ordered consumers have locked, in memory only: after a restart clients lock them again.

    A lock is no fence: nothing is checked when messages are read. It tells clients which of them may consume a queue.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._locks: dict[str, dict[QueueKey, tuple[str, float]]] = {}
        """The owner and the end of each lock, by group and queue."""
        self._count = 0

    def lock(self, group: str, client_id: str, queues: Sequence[QueueKey]) -> list[QueueKey]:
        """Lock the queues for a client, and return those that it holds now. Raises OverLimit."""
        now_s = self._clock.monotonic_s()
        locks = self._locks.setdefault(group, {})
        if len(locks) + len(queues) > LOCKS_PER_GROUP_MAX or self._count + len(queues) > LOCKS_MAX:
            self.sweep()
            locks = self._locks.setdefault(group, {})
            if len(locks) + len(queues) > LOCKS_PER_GROUP_MAX:
                raise OverLimit("client_topics", f"group {group} has already locked {len(locks)} queues")
            if self._count + len(queues) > LOCKS_MAX:
                raise OverLimit("client_topics", f"all groups together have already locked {self._count} queues")
        before = len(locks)
        owned: list[QueueKey] = []
        for queue in queues:
            owner, until_s = locks.get(queue, ("", 0.0))
            if owner == client_id or until_s <= now_s:
                locks[queue] = client_id, now_s + LOCK_S
                owned.append(queue)
        self._count += len(locks) - before
        return owned

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueKey]) -> None:
        """Free those of the queues that the client has locked."""
        locks = self._locks.get(group, {})
        for queue in queues:
            if locks.get(queue, ("", 0.0))[0] == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._locks.pop(group, None)

    def has_locks(self, group: str) -> bool:
        """Return whether any queue of the group is locked now: its consumers consume in order."""
        now_s = self._clock.monotonic_s()
        return any(until_s > now_s for _, until_s in self._locks.get(group, {}).values())

    def sweep(self) -> None:
        """Drop locks that have ended; to be called every few seconds."""
        now_s = self._clock.monotonic_s()
        for group, locks in list(self._locks.items()):
            for queue in [each for each, (_, until_s) in locks.items() if until_s <= now_s]:
                del locks[queue]
                self._count -= 1
            if not locks:
                del self._locks[group]
