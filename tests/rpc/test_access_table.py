"""The rights that each call needs: every request of the protocol has a row, and one without a row is refused."""

from __future__ import annotations

from google.protobuf.message import Message

from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as other
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.access import NEEDS, needs_of
from quarry_mq.server.security.authorization import SUPER_USERS_ONLY
from tests.rpc.broker import consumer, producer, resource

REQUEST_NAMES = {method.input_type.name for method in service.DESCRIPTOR.services_by_name["MessagingService"].methods}


def needed(request: Message) -> list[str]:
    """Each need, with what is enough for it."""
    return ["|".join(map(str, need)) for need in needs_of(type(request))(request)]


def test_every_request_of_the_protocol_has_a_row() -> None:
    assert {kind.DESCRIPTOR.name for kind in NEEDS} == REQUEST_NAMES


def test_a_request_without_a_row_is_for_nobody() -> None:
    assert needs_of(other.ChangeLogLevelRequest)(other.ChangeLogLevelRequest()) == SUPER_USERS_ONLY


def test_clients_need_what_their_settings_name() -> None:
    assert needed(service.TelemetryCommand(settings=producer("a", "b", "a"))) == ["pub on topic a", "pub on topic b"]
    assert needed(service.TelemetryCommand(settings=producer())) == []
    assert needed(service.TelemetryCommand(settings=consumer("g", "a", "%RETRY%g"))) == [
        "sub on group g",
        "sub on topic a",
        "sub on topic %RETRY%g",
    ]
    assert needed(service.TelemetryCommand(verify_message_result=service.VerifyMessageResult())) == []
    assert needed(service.TelemetryCommand(settings=definition.Settings())) == []


def test_a_route_is_for_who_may_do_anything_with_the_topic() -> None:
    request = service.QueryRouteRequest(topic=resource("a"))
    assert needed(request) == ["pub on topic a|sub on topic a|get on topic a"]
    dead_letters = service.QueryRouteRequest(topic=resource("%DLQ%g"))
    assert needed(dead_letters) == ["pub on topic %DLQ%g|sub on group g|get on topic %DLQ%g"]


def test_a_producers_sign_of_life_needs_nothing_and_a_consumers_its_group() -> None:
    assert needed(service.HeartbeatRequest()) == []
    assert needed(service.HeartbeatRequest(group=resource("g"))) == ["sub on group g"]
    assert needed(service.NotifyClientTerminationRequest(group=resource("g"))) == ["sub on group g"]


def test_reading_needs_topic_and_group() -> None:
    queue = definition.MessageQueue(topic=resource("a"))
    both = ["sub on topic a", "sub on group g"]
    for request in (
        service.ReceiveMessageRequest(group=resource("g"), message_queue=queue),
        service.PullMessageRequest(group=resource("g"), message_queue=queue),
        service.UpdateOffsetRequest(group=resource("g"), message_queue=queue),
        service.GetOffsetRequest(group=resource("g"), message_queue=queue),
        service.AckMessageRequest(group=resource("g"), topic=resource("a")),
        service.ForwardMessageToDeadLetterQueueRequest(group=resource("g"), topic=resource("a")),
        service.QueryAssignmentRequest(group=resource("g"), topic=resource("a")),
        service.SyncLiteSubscriptionRequest(group=resource("g"), topic=resource("a")),
    ):
        assert needed(request) == both, type(request)
    assert needed(service.ChangeInvisibleDurationRequest(group=resource("g"), topic=resource("a"))) == both[1:]
    assert needed(service.QueryOffsetRequest(message_queue=queue)) == both[:1]


def test_none_but_a_group_reads_its_retry_topics() -> None:
    for group, topic, is_own in (
        ("billing", "%RETRY%billing", True),
        ("billing", "%RETRY%billing_paid", True),
        ("billing", "%RETRY%billing+paid", True),
        ("billing_paid", "%RETRY%billing_paid", True),  # the authorizer finds out whose it may be, too
        ("audit", "%RETRY%billing_paid", False),
        ("bill", "%RETRY%billing_paid", False),
        ("", "%RETRY%billing_paid", False),
    ):
        queue = definition.MessageQueue(topic=resource(topic))
        for request in (
            service.ReceiveMessageRequest(group=resource(group), message_queue=queue),
            service.PullMessageRequest(group=resource(group), message_queue=queue),
            service.GetOffsetRequest(group=resource(group), message_queue=queue),
            service.UpdateOffsetRequest(group=resource(group), message_queue=queue),
            service.AckMessageRequest(group=resource(group), topic=resource(topic)),
            service.QueryAssignmentRequest(group=resource(group), topic=resource(topic)),
        ):
            reading = f"sub on topic {topic}" if is_own else ""
            assert needed(request) == [reading, f"sub on group {group}"], request
        telemetry = service.TelemetryCommand(settings=consumer(group, topic))
        assert needed(telemetry)[1:] == [f"sub on topic {topic}" if is_own else ""]
