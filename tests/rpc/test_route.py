"""QueryRoute and QueryAssignment, by the conformance points of docs/formats/protocol.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.addresses import Address
from quarry_mq.server.routing import RouteQueue, route_queues
from quarry_mq.server.rpc.routes import BYTES_MAX, RouteAnswers
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.settings.sections import TopicsSection
from quarry_mq.store.metadata import Permission, Topic, TopicType
from tests.rpc.broker import Broker, consumer, producer, resource

DIALLED = definition.Endpoints(
    scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host="mq.example.com", port=30081)]
)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def route(
    broker: Broker, topic: str, endpoints: definition.Endpoints | None = DIALLED, namespace: str = ""
) -> service.QueryRouteResponse:
    request = service.QueryRouteRequest(topic=resource(topic, namespace), endpoints=endpoints)
    return broker.ask("QueryRoute", request, service.QueryRouteResponse)


def assign(broker: Broker, topic: str, group: str) -> service.QueryAssignmentResponse:
    request = service.QueryAssignmentRequest(topic=resource(topic), group=resource(group), endpoints=DIALLED)
    return broker.ask("QueryAssignment", request, service.QueryAssignmentResponse)


def test_a_route_lists_the_queues(broker: Broker) -> None:
    """Point 12."""
    broker.add_topic("orders", read=4, write=4)
    response = route(broker, "orders")
    assert response.status.code == definition.OK
    assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
    for queue in response.message_queues:
        assert queue.topic.name == "orders"
        assert queue.permission == definition.READ_WRITE
        assert queue.broker.id == 0
        assert queue.broker.name == "broker-a"
        assert list(queue.accept_message_types) == [definition.NORMAL]


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (TopicType.FIFO, [definition.FIFO]),
        (TopicType.DELAY, [definition.DELAY]),
        (TopicType.TRANSACTION, [definition.TRANSACTION]),
        (TopicType.LITE, [definition.LITE]),
        (TopicType.PRIORITY, [definition.PRIORITY]),
        (TopicType.MIXED, [definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION]),
    ],
)
def test_a_route_tells_the_accepted_types(
    broker: Broker, kind: TopicType, accepted: list[definition.MessageType]
) -> None:
    """Point 13."""
    broker.add_topic("orders", kind)
    for queue in route(broker, "orders").message_queues:
        assert list(queue.accept_message_types) == accepted


@pytest.mark.parametrize("name", ["", "a b", "rmq_sys_x", "TBW102", "a" * 128])
def test_an_illegal_topic_has_no_route(broker: Broker, name: str) -> None:
    """Point 14."""
    assert route(broker, name).status.code == definition.ILLEGAL_TOPIC


@pytest.mark.parametrize("name", ["orders", "a" * 127])
def test_an_unknown_topic_has_no_route(broker: Broker, name: str) -> None:
    """Point 14."""
    response = route(broker, name)
    assert response.status.code == definition.TOPIC_NOT_FOUND
    assert not response.message_queues


@pytest.mark.parametrize(
    ("read", "write", "permission", "expected"),
    [
        (4, 8, Permission.READ | Permission.WRITE, [definition.WRITE] * 4 + [definition.READ_WRITE] * 4),
        (8, 4, Permission.READ | Permission.WRITE, [definition.READ] * 4 + [definition.READ_WRITE] * 4),
        (8, 2, Permission.READ, [definition.READ] * 8),
        (2, 8, Permission.WRITE, [definition.WRITE] * 8),
        (2, 2, Permission(0), [definition.NONE] * 2),
    ],
)
def test_unequal_queues_and_permissions(
    broker: Broker, read: int, write: int, permission: Permission, expected: list[definition.Permission]
) -> None:
    """Point 15."""
    broker.topics.create(Topic("orders", TopicType.NORMAL, read, write, permission))
    response = route(broker, "orders")
    assert response.status.code == definition.OK
    assert [queue.permission for queue in response.message_queues] == expected
    assert [queue.id for queue in response.message_queues] == list(range(len(expected)))


def test_a_topic_of_an_older_store_without_write_queues() -> None:
    """Point 15: 8 read queues, none to write."""
    queues = route_queues(Topic("orders", TopicType.NORMAL, 8, 0))
    assert [queue.permission for queue in queues] == [Permission.READ] * 8


def test_endpoints_come_back_as_dialled(broker: Broker) -> None:
    """Point 2; rmq#8864: behind a port mapping only the client knows where it reached the broker."""
    broker.add_topic("orders")
    assert {queue.broker.endpoints.SerializeToString() for queue in route(broker, "orders").message_queues} == {
        DIALLED.SerializeToString()
    }


@pytest.mark.parametrize(
    ("advertise", "scheme"),
    [
        ("10.0.0.7:8081", definition.IPv4),
        ("[2001:db8::1]:8081", definition.IPv6),
        ("mq.example.com:8081", definition.DOMAIN_NAME),
    ],
)
def test_an_advertised_address_goes_first(advertise: str, scheme: definition.AddressScheme) -> None:
    broker = Broker(advertise=Address.parse(advertise))
    broker.add_topic("orders")
    endpoints = route(broker, "orders").message_queues[0].broker.endpoints
    assert endpoints.scheme == scheme
    (address,) = endpoints.addresses
    assert f"[{address.host}]:{address.port}" == advertise or f"{address.host}:{address.port}" == advertise


def test_without_endpoints_the_route_leads_to_the_listener(broker: Broker) -> None:
    broker.add_topic("orders")
    endpoints = route(broker, "orders", endpoints=None).message_queues[0].broker.endpoints
    assert endpoints.scheme == definition.IPv4
    assert [(address.host, address.port) for address in endpoints.addresses] == [("127.0.0.1", 8081)]


def test_hostile_requests_do_not_grow_in_the_answer(broker: Broker) -> None:
    broker.add_topic("orders")
    many = definition.Endpoints(addresses=[definition.Address(host="h", port=1)] * 17)
    assert route(broker, "orders", many).status.code == definition.ILLEGAL_ACCESS_POINT
    long = definition.Endpoints(addresses=[definition.Address(host="h" * 256, port=1)])
    assert route(broker, "orders", long).status.code == definition.ILLEGAL_ACCESS_POINT
    assert route(broker, "orders", namespace="n" * 256).status.code == definition.ILLEGAL_TOPIC


def test_the_namespace_comes_back(broker: Broker) -> None:
    broker.add_topic("orders")
    assert route(broker, "orders", namespace="acme").message_queues[0].topic.resource_namespace == "acme"


@pytest.mark.parametrize("text", ["", "host", "host:", ":8081", "host:port", "host:70000", "host:-1"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="not host:port"):
        Address.parse(text)


def test_producers_and_unknown_clients_make_topics_by_asking() -> None:
    broker = Broker(settings=BrokerSettings(topics=TopicsSection(default_queues=3)))
    response = route(broker, "asked-before-settings")
    assert len(response.message_queues) == 3
    assert definition.NORMAL in response.message_queues[0].accept_message_types
    broker.connect(producer())
    assert route(broker, "asked-by-producer").status.code == definition.OK
    assert [topic.name for topic in broker.topics.list()] == ["asked-before-settings", "asked-by-producer"]


def test_a_deleted_topic_stays_deleted_under_its_consumers() -> None:
    """rmq#9792: consumers go on asking for their routes every 30 seconds."""
    broker = Broker(settings=BrokerSettings())
    broker.add_topic("orders")
    broker.connect(consumer("workers", "orders"))
    assert route(broker, "orders").status.code == definition.OK
    broker.topics.delete("orders")
    assert route(broker, "orders").status.code == definition.TOPIC_NOT_FOUND
    assert assign(broker, "orders", "workers").status.code == definition.TOPIC_NOT_FOUND
    assert broker.topics.get("orders") is None


@pytest.mark.parametrize("name", ["%DLQ%workers", "%RETRY%workers_orders"])
def test_the_brokers_own_topics_are_not_made_by_asking(name: str) -> None:
    broker = Broker(settings=BrokerSettings())
    assert route(broker, name).status.code == definition.TOPIC_NOT_FOUND


def test_an_assignment_names_one_queue_per_broker(broker: Broker) -> None:
    """Point 16, normal group."""
    broker.add_topic("orders")
    broker.add_group("workers")
    response = assign(broker, "orders", "workers")
    assert response.status.code == definition.OK
    (assignment,) = response.assignments
    assert assignment.message_queue.id == -1
    assert assignment.message_queue.topic.name == "orders"
    assert assignment.message_queue.permission == definition.READ_WRITE
    assert assignment.message_queue.broker.name == "broker-a"
    assert assignment.message_queue.broker.endpoints == DIALLED


def test_a_fifo_groups_assignment_names_every_queue(broker: Broker) -> None:
    """Point 16, FIFO group."""
    broker.add_topic("orders", read=3, write=5)
    broker.add_group("workers", fifo=True)
    assert [each.message_queue.id for each in assign(broker, "orders", "workers").assignments] == [0, 1, 2]


def test_refused_assignments(broker: Broker) -> None:
    """Point 17."""
    broker.topics.create(Topic("write-only", TopicType.NORMAL, 4, 4, Permission.WRITE))
    broker.add_topic("orders")
    broker.add_group("workers")
    assert assign(broker, "write-only", "workers").status.code == definition.FORBIDDEN
    assert assign(broker, "orders", "").status.code == definition.ILLEGAL_CONSUMER_GROUP
    assert assign(broker, "orders", "CID_RMQ_SYS_x").status.code == definition.ILLEGAL_CONSUMER_GROUP
    assert assign(broker, "a b", "workers").status.code == definition.ILLEGAL_TOPIC
    assert assign(broker, "unknown", "workers").status.code == definition.TOPIC_NOT_FOUND
    assert assign(broker, "orders", "unknown").status.code == definition.CONSUMER_GROUP_NOT_FOUND


def test_asking_for_an_assignment_makes_no_group() -> None:
    broker = Broker(settings=BrokerSettings())
    broker.add_topic("orders")
    assert assign(broker, "orders", "workers").status.code == definition.OK
    assert broker.groups.get("workers") is None


def test_a_route_of_many_queues_is_made_once_for_as_long_as_its_topic_stays(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making the answer of 8,192 queues held the loop up for 22 ms, every 30 s for each client."""
    made: list[str] = []

    def counted(topic: Topic) -> list[RouteQueue]:
        made.append(topic.name)
        return route_queues(topic)

    monkeypatch.setattr("quarry_mq.server.rpc.routes.route_queues", counted)
    topic = broker.add_topic("orders", read=8_192, write=8_192)
    first = route(broker, "orders")
    assert [queue.id for queue in first.message_queues] == list(range(8_192))
    assert route(broker, "orders") == first
    assert made == ["orders"]
    assert route(broker, "orders", None).message_queues[0].broker != first.message_queues[0].broker
    assert route(broker, "orders", namespace="acme").message_queues[0].topic.resource_namespace == "acme"
    assert route(broker, "orders") == first
    assert len(made) == 3
    broker.topics.update(replace(topic, permission=Permission.READ))
    assert {queue.permission for queue in route(broker, "orders").message_queues} == {definition.READ}


def test_the_answers_kept_are_bounded_in_bytes_and_the_latest_stay() -> None:
    answers, topic = RouteAnswers(), Topic("orders", TopicType.NORMAL, 64, 64)
    for number in range(100):
        answers.keep((b"orders", b"%03d" % number), topic, bytes(1 << 20))
        assert answers.find((b"orders", b"000"), topic) is not None, "asked for again and again"
        assert answers.size <= BYTES_MAX
    kept = [number for number in range(100) if answers.find((b"orders", b"%03d" % number), topic)]
    assert kept == [0, *range(86, 100)]
    for _ in range(2):
        answers.keep((b"orders", b"000"), topic, b"another")
    answers.keep((b"orders", b"large"), topic, bytes(BYTES_MAX))
    assert answers.size == 0, "one that alone is too large is not kept"
