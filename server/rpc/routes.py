"""QueryRoute and QueryAssignment: the queues of a topic, and the brokers that have them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.addresses import Address
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.cluster.membership import SLOTS, Members
from quarry_mq.server.front import Call, Method
from quarry_mq.server.metadata import Directory
from quarry_mq.server.routing import BrokerIdentity, assigned_queues, route_queues
from quarry_mq.server.rpc.access import publish
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.wire.message_types import ACCEPTED_TYPES
from quarry_mq.server.wire.settings import ClientKind
from quarry_mq.server.wire.status import Refused, fill_ok
from quarry_mq.server.wire.validate import check_group, check_topic
from quarry_mq.store.metadata import READ_WRITE, Permission, Topic, TopicType

QUEUES_MIN: Final = 64
"""Smallest number of queues for which answers are cached.

Building an answer costs more than 200 µs from there on, and one of 8,192 queues blocks the event loop for 10 ms.
"""

BYTES_MAX: Final = 16 << 20
"""Bytes of all answers: some forty of the largest."""

Key = tuple[bytes, bytes]
"""The parts that an answer repeats for every queue: the topic's name as the client wrote it, and the broker.

Both are serialized.
"""


class RouteAnswers:
    """The recent answers, the latest last. All clients ask every 30 s, mostly for the same topics."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[Topic, bytes]] = OrderedDict()
        self._size = 0

    @property
    def size(self) -> int:
        """The bytes of all answers and keys."""
        return self._size

    def find(self, key: Key, topic: Topic) -> bytes | None:
        """Return the cached answer if the topic is still the same."""
        kept = self._answers.get(key)
        if kept is None or kept[0] != topic:
            return None
        self._answers.move_to_end(key)
        return kept[1]

    def keep(self, key: Key, topic: Topic, answer: bytes) -> None:
        self._drop(key)
        self._answers[key] = topic, answer
        self._size += _size(key, answer)
        while self._size > BYTES_MAX:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: Key) -> None:
        kept = self._answers.pop(key, None)
        if kept is not None:
            self._size -= _size(key, kept[1])


def _size(key: Key, answer: bytes) -> int:
    return len(key[0]) + len(key[1]) + len(answer)


ANY_QUEUE: Final = -1
"""The number that means "any queue of this broker" in an assignment."""

MASTER: Final = 0
"""The broker id of a broker that takes writes."""

ADDRESSES_MAX: Final = 16
HOST_SIZE_MAX: Final = 255
ENDPOINTS_SIZE_MAX: Final = 1_024
NAMESPACE_SIZE_MAX: Final = 255
# the content of a request is repeated for every queue of the answer, so it must not be large

_PERMISSIONS: Final[Mapping[Permission, definition.Permission]] = {
    Permission(0): definition.NONE,
    Permission.READ: definition.READ,
    Permission.WRITE: definition.WRITE,
    READ_WRITE: definition.READ_WRITE,
}
_SCHEMES: Final[Mapping[int | None, definition.AddressScheme]] = {
    4: definition.IPv4,
    6: definition.IPv6,
    None: definition.DOMAIN_NAME,
}


class Place(NamedTuple):
    """A broker of the cluster, and the most that clients may do there, whatever a topic allows."""

    broker: definition.Broker
    limit: Permission


class RouteService:
    def __init__(
        self,
        edge: Edge,
        clients: ClientRegistry,
        directory: Directory,
        broker: BrokerIdentity,
        members: Members | None = None,
    ) -> None:
        """`members` are those of the cluster, where there is one."""
        self._edge = edge
        self._clients = clients
        self._directory = directory
        self._broker = broker
        self._members = members
        self._answers = RouteAnswers()

    def methods(self) -> dict[str, Method]:
        unary = self._edge.unary
        return {
            "QueryRoute": unary(service.QueryRouteRequest, service.QueryRouteResponse, self._query_route),
            "QueryAssignment": unary(
                service.QueryAssignmentRequest, service.QueryAssignmentResponse, self._query_assignment
            ),
        }

    def _query_route(self, call: Call, client_id: str, request: service.QueryRouteRequest) -> None:
        _check_resource(request.topic)
        topic = self._topic_for(call, client_id, request.topic.name)
        places = self._places(call, request.endpoints)
        owners = self._owners(topic)
        if topic.queue_count * len(places) + len(owners) < QUEUES_MIN:
            call.reply(_route(request.topic, topic, places).SerializeToString())
            return
        key = request.topic.SerializeToString(), _key_of(places, owners)
        answer = self._answers.find(key, topic)
        if answer is None:
            answer = _route(request.topic, topic, places, owners).SerializeToString()
            self._answers.keep(key, topic, answer)
        call.reply(answer)

    def _owners(self, topic: Topic) -> Sequence[str]:
        """Return the owner of each slot if the topic has only messages of message groups; nothing for other topics."""
        if self._members is None or topic.type is not TopicType.FIFO or Permission.WRITE not in topic.permission:
            return ()
        return self._members.view.owners

    def _topic_for(self, call: Call, client_id: str, name: str) -> Topic:
        """Return the topic; it is created only for a client that may be about to send to it (server/metadata.py)."""
        settings = self._clients.find(client_id)
        if (settings is None or settings.kind is ClientKind.PRODUCER) and self._edge.may(call, publish(name)):
            return self._directory.topic_to_send(name, self._edge.user)
        return self._directory.topic(name)

    def _query_assignment(
        self, call: Call, _client_id: str, request: service.QueryAssignmentRequest
    ) -> service.QueryAssignmentResponse:
        _check_resource(request.topic)
        check_group(request.group.name)
        topic = self._directory.topic(request.topic.name)
        numbers = assigned_queues(topic, self._directory.group(request.group.name))
        response = service.QueryAssignmentResponse()
        fill_ok(response.status)
        for place in self._places(call, request.endpoints):
            for number in numbers:
                queue = response.assignments.add().message_queue
                queue.topic.CopyFrom(request.topic)
                queue.id = ANY_QUEUE if number is None else number
                queue.permission = _PERMISSIONS[topic.permission & place.limit]
                queue.broker.CopyFrom(place.broker)
                queue.accept_message_types.extend(ACCEPTED_TYPES[topic.type])
        return response

    def _places(self, call: Call, dialled: definition.Endpoints) -> list[Place]:
        """Return all brokers that the client can reach, by name: every member returns the same."""
        own, members = self._broker_at(call, dialled), self._members
        if members is None:
            return [Place(own, READ_WRITE)]
        places = [Place(own, members.limit_of(own.name))]
        for member in members.routed():
            address = member.advertised_to(is_secure=call.is_secure)
            if address is not None:
                broker = definition.Broker(name=member.name, id=MASTER)
                _fill_endpoints(broker.endpoints, address)
                places.append(Place(broker, members.limit_of(member.name)))
        return sorted(places, key=lambda place: place.broker.name)

    def _broker_at(self, call: Call, dialled: definition.Endpoints) -> definition.Broker:
        """Return the broker at its advertised address or, outside of clusters, at the address dialled by the client."""
        broker = definition.Broker(name=self._broker.name, id=MASTER)
        announced = None if self._members is None else self._members.own
        # in a cluster the address that a client has dialled may lead to any member
        advertised = (announced or self._broker).advertised_to(is_secure=call.is_secure)
        if advertised is not None:
            _fill_endpoints(broker.endpoints, advertised)
        elif dialled.addresses:
            _check_endpoints(dialled)
            broker.endpoints.CopyFrom(dialled)
        else:
            _fill_endpoints(broker.endpoints, self._broker.listens_for(is_secure=call.is_secure))
        return broker


def _route(
    asked: definition.Resource, topic: Topic, places: Sequence[Place], owners: Sequence[str] = ()
) -> service.QueryRouteResponse:
    response = service.QueryRouteResponse()
    fill_ok(response.status)
    queues = [
        definition.MessageQueue(topic=asked, broker=broker, accept_message_types=ACCEPTED_TYPES[topic.type])
        for broker, _ in places
    ]
    if owners:
        _add_slots(response, topic, places, queues, owners)
        return response
    # In turns: a client that tries the next queue of the list after a failure tries another broker.
    for number, permission in route_queues(topic):
        for queue, (_, limit) in zip(queues, places, strict=True):
            queue.id, queue.permission = number, _PERMISSIONS[permission & limit]
            response.message_queues.append(queue)  # copies it, which costs a third of filling in a new one
    return response


def _add_slots(
    response: service.QueryRouteResponse,
    topic: Topic,
    places: Sequence[Place],
    queues: Sequence[definition.MessageQueue],
    owners: Sequence[str],
) -> None:
    """Add one queue for each slot of message groups, at its owner; then those of members that are only read.

    So a client that hashes groups over the list, as Java's and Go's do, calls the owner itself. The list has the same
    length whichever member is away: another member takes the calls for that one, and lets them wait.
    """
    writable = [queue for queue, (_, limit) in zip(queues, places, strict=True) if Permission.WRITE in limit]
    by_name = {queue.broker.name: queue for queue in writable}
    for slot, owner in enumerate(owners if writable else ()):
        queue = by_name.get(owner, writable[slot % len(writable)])
        # all existing numbers: a client that reads queue by queue learns them here
        queue.id, queue.permission = slot % max(1, topic.read_queues), _PERMISSIONS[topic.permission]
        response.message_queues.append(queue)
    if Permission.READ in topic.permission:
        names = {queue.broker.name for queue in response.message_queues}
        for queue in queues:
            # all queues of a member without slots; of other members the queues beyond the slots
            for number in range(SLOTS if queue.broker.name in names else 0, topic.read_queues):
                queue.id, queue.permission = number, definition.READ
                response.message_queues.append(queue)


def _key_of(places: Sequence[Place], owners: Sequence[str]) -> bytes:
    known = b"".join(bytes([place.limit.value]) + place.broker.SerializeToString() for place in places)
    return known + "\n".join(owners).encode()


def _fill_endpoints(endpoints: definition.Endpoints, address: Address) -> None:
    endpoints.scheme = _SCHEMES[address.ip_version]
    endpoints.addresses.add(host=address.host, port=address.port)


def _check_resource(topic: definition.Resource) -> None:
    check_topic(topic.name)
    if len(topic.resource_namespace) > NAMESPACE_SIZE_MAX:
        raise Refused(definition.ILLEGAL_TOPIC, f"the namespace has more than {NAMESPACE_SIZE_MAX} characters")


def _check_endpoints(endpoints: definition.Endpoints) -> None:
    addresses = endpoints.addresses  # counted before any of them is read: there may be millions
    if len(addresses) > ADDRESSES_MAX or any(len(each.host) > HOST_SIZE_MAX for each in addresses):
        raise Refused(
            definition.ILLEGAL_ACCESS_POINT,
            f"endpoints of more than {ADDRESSES_MAX} addresses or with a host of more than {HOST_SIZE_MAX} characters",
        )
    if endpoints.ByteSize() > ENDPOINTS_SIZE_MAX:
        raise Refused(definition.ILLEGAL_ACCESS_POINT, f"endpoints of more than {ENDPOINTS_SIZE_MAX} bytes")
