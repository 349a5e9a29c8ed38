"""Heartbeat and NotifyClientTermination, by the conformance points of docs/formats/protocol.md."""

from __future__ import annotations

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from tests.rpc.broker import Broker, consumer, producer, resource
from tests.rpc.fake_call import CLIENT


@pytest.fixture
def broker() -> Broker:
    return Broker()


def heartbeat(broker: Broker, group: str | None = None) -> definition.Code:
    request = service.HeartbeatRequest(group=None if group is None else resource(group))
    return broker.ask("Heartbeat", request, service.HeartbeatResponse).status.code


def terminate(broker: Broker, group: str | None = None) -> definition.Code:
    request = service.NotifyClientTerminationRequest(group=None if group is None else resource(group))
    return broker.ask("NotifyClientTermination", request, service.NotifyClientTerminationResponse).status.code


def test_a_heartbeat_before_settings_is_not_recognised(broker: Broker) -> None:
    """Point 18."""
    assert heartbeat(broker) == definition.UNRECOGNIZED_CLIENT_TYPE


def test_a_producers_heartbeat_needs_no_group(broker: Broker) -> None:
    """Point 18."""
    broker.connect(producer("orders"))
    assert heartbeat(broker) == definition.OK
    assert heartbeat(broker, "") == definition.OK


@pytest.mark.parametrize(
    "kind",
    [
        definition.PUSH_CONSUMER,
        definition.SIMPLE_CONSUMER,
        definition.LITE_PUSH_CONSUMER,
        definition.LITE_SIMPLE_CONSUMER,
    ],
)
def test_a_consumers_heartbeat_needs_a_legal_group(broker: Broker, kind: definition.ClientType) -> None:
    """Point 18."""
    broker.connect(consumer("workers", "orders", kind=kind))
    assert heartbeat(broker, "workers") == definition.OK
    for group in (None, "", "g" * 121, "CID_RMQ_SYS_x", "with space"):
        assert heartbeat(broker, group) == definition.ILLEGAL_CONSUMER_GROUP
    assert heartbeat(broker, "g" * 120) == definition.OK


def test_the_heartbeats_own_client_type_does_not_count(broker: Broker) -> None:
    broker.connect(producer("orders"))
    request = service.HeartbeatRequest(client_type=definition.PUSH_CONSUMER)
    assert broker.ask("Heartbeat", request, service.HeartbeatResponse).status.code == definition.OK


def test_a_pull_consumer_has_no_heartbeat(broker: Broker) -> None:
    broker.connect(consumer("workers", "orders", kind=definition.PULL_CONSUMER))
    assert heartbeat(broker, "workers") == definition.UNRECOGNIZED_CLIENT_TYPE


def test_a_client_that_says_goodbye_is_forgotten(broker: Broker) -> None:
    """Point 19."""
    broker.connect(producer("orders"))
    assert terminate(broker) == definition.OK
    assert broker.lost == [CLIENT]
    assert heartbeat(broker) == definition.UNRECOGNIZED_CLIENT_TYPE
    assert terminate(broker) == definition.UNRECOGNIZED_CLIENT_TYPE


def test_a_consumer_says_goodbye_with_its_group(broker: Broker) -> None:
    broker.connect(consumer("workers", "orders"))
    assert terminate(broker, "") == definition.ILLEGAL_CONSUMER_GROUP
    assert broker.lost == []
    assert terminate(broker, "workers") == definition.OK
    assert broker.lost == [CLIENT]


def test_go_producers_say_goodbye_with_an_empty_group(broker: Broker) -> None:
    broker.connect(producer("orders"))
    assert terminate(broker, "") == definition.OK


def test_heartbeats_keep_a_client_alive(broker: Broker) -> None:
    broker.connect(producer("orders"))
    for _ in range(10):
        broker.clock.advance(100)
        assert heartbeat(broker) == definition.OK
        broker.clients.sweep()
    broker.clock.advance(120)
    broker.clients.sweep()
    assert broker.lost == [CLIENT]
    assert heartbeat(broker) == definition.UNRECOGNIZED_CLIENT_TYPE
