"""The common part of all calls: the caller is known, and every error becomes an answer."""

from __future__ import annotations

from typing import Any, cast

import pytest
import structlog
from google.protobuf.message import Message

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.codes import GrpcStatus
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.front import Call, Method
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.server.rpc.context import Edge
from quarry_mq.server.rpc.messaging import METHOD_NAMES, messaging_methods
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.parsing import UNCOUNTED_SIZE
from quarry_mq.server.wire.status import INTERNAL_TEXT
from quarry_mq.store import errors
from quarry_mq.store.native import Native
from tests.rpc.broker import MESSAGE_METHODS, SERVICE, Broker
from tests.rpc.fake_call import CLIENT, FakeCall, is_a_call

ANSWERS: dict[str, type[Message]] = {
    name: getattr(service, f"{name}Response") for name in METHOD_NAMES if name != "Telemetry"
}
HERE = sorted(set(ANSWERS) - set(MESSAGE_METHODS))


@pytest.fixture
def broker() -> Broker:
    return Broker()


def status_in(call: FakeCall, name: str) -> definition.Status:
    status: definition.Status = call.answer(ANSWERS[name]).status  # type: ignore[attr-defined]
    return status


@pytest.mark.parametrize("client_id", [None, "", "  "])
@pytest.mark.parametrize("name", HERE)
def test_every_call_needs_a_client_id(broker: Broker, name: str, client_id: str | None) -> None:
    """Point 1."""
    call = broker.start(name, b"", client_id=client_id)
    assert status_in(call, name).code == definition.CLIENT_ID_REQUIRED


@pytest.mark.parametrize("name", HERE)
def test_bytes_that_are_no_protobuf_are_a_bad_request(broker: Broker, name: str) -> None:
    status = status_in(broker.start(name, b"\xff\xff\xff"), name)
    assert status.code == definition.BAD_REQUEST
    assert status.message


def test_a_client_id_is_not_endless(broker: Broker) -> None:
    call = broker.start("Heartbeat", b"", client_id="c" * 1025)
    assert status_in(call, "Heartbeat").code == definition.BAD_REQUEST


def test_all_seventeen_calls_are_registered(broker: Broker) -> None:
    assert set(broker.methods) == {SERVICE + name for name in METHOD_NAMES}
    assert len(broker.methods) == 17
    assert {path.rpartition("/")[2] for path, method in broker.methods.items() if method.streaming_out} == {
        "PullMessage",
        "ReceiveMessage",
        "Telemetry",
    }


def test_methods_must_be_complete_and_stream_as_described() -> None:
    plain = Method(lambda call, body: None)
    every = dict.fromkeys(METHOD_NAMES, plain)
    with pytest.raises(ValueError, match="does not stream"):
        messaging_methods(every)
    with pytest.raises(ValueError, match=r"not at all: \['Telemetry'\]"):
        messaging_methods(dict.fromkeys(METHOD_NAMES - {"Telemetry"}, plain))
    with pytest.raises(ValueError, match=r"twice: \['SendMessage'\]"):
        messaging_methods(every, {"SendMessage": plain})
    with pytest.raises(ValueError, match=r"unknown: \['Bogus'\]"):
        messaging_methods(every, {"Bogus": plain})


class Failing:
    """A service whose every call raises the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        clock = ManualClock()
        edge = Edge(
            ClientRegistry(clock, BrokerSettings()),
            ErrorReporter(clock, damage_met=lambda: None, passed_over=lambda: None),
        )
        self.unary = edge.unary(service.HeartbeatRequest, service.HeartbeatResponse, self._raise).handler
        self.stream = edge.server_stream(
            service.ReceiveMessageRequest, service.ReceiveMessageResponse, self._raise, lambda: b"the last item"
        ).handler

    def _raise(self, call: Call, client_id: str, request: Message) -> None:
        raise self._error


def test_an_error_on_purpose_reaches_the_client_and_not_the_log() -> None:
    call = FakeCall()
    with structlog.testing.capture_logs() as logs:
        Failing(errors.TopicNotFound("topic orders does not exist")).unary(call, b"")
    status = call.answer(service.HeartbeatResponse).status
    assert (status.code, status.message) == (definition.TOPIC_NOT_FOUND, "topic orders does not exist")
    assert logs == []


@pytest.mark.parametrize("error", [RuntimeError("secret"), KeyError("secret"), AssertionError("secret")])
def test_an_unexpected_error_reaches_the_log_and_not_the_client(error: Exception) -> None:
    call = FakeCall("/test/Heartbeat", client_id="host@1", metadata={"x-mq-request-id": "4711"})
    with structlog.testing.capture_logs() as logs:
        Failing(error).unary(call, b"")
    status = call.answer(service.HeartbeatResponse).status
    assert (status.code, status.message) == (definition.INTERNAL_SERVER_ERROR, INTERNAL_TEXT)
    (entry,) = logs
    assert entry["log_level"] == "error"
    assert entry["exc_info"] is error
    assert entry["path"] == "/test/Heartbeat"
    assert entry["peer"] == call.peer
    assert (entry["client_id"], entry["request_id"]) == ("host@1", "4711")


def test_the_refusals_of_a_poisoned_store_do_not_fill_the_log() -> None:
    """It was logged when it came to be so; a traceback per refused send would fill the disk that may be at fault."""
    call = FakeCall()
    with structlog.testing.capture_logs() as logs:
        Failing(errors.StorePoisoned("flushing the commit log failed")).unary(call, b"")
    status = call.answer(service.HeartbeatResponse).status
    assert (status.code, status.message) == (definition.INTERNAL_SERVER_ERROR, "flushing the commit log failed")
    assert logs == []


def test_where_there_is_a_native_part_it_counts_the_fields_of_large_requests() -> None:
    counted: list[int] = []

    class Counting:
        def fields_left(self, body: bytes, shape: dict[int, Any], most: int) -> int:
            counted.append(len(body))
            return -1

    clock = ManualClock()
    error_reporter = ErrorReporter(clock, damage_met=lambda: None, passed_over=lambda: None)
    edge = Edge(ClientRegistry(clock, BrokerSettings()), error_reporter, native=cast(Native, Counting()))
    call = FakeCall()
    send = edge.unary(service.SendMessageRequest, service.SendMessageResponse, lambda *_: None).handler
    send(call, bytes(UNCOUNTED_SIZE + 1))
    assert call.answer(service.SendMessageResponse).status.code == definition.PAYLOAD_TOO_LARGE
    assert counted == [UNCOUNTED_SIZE + 1]


def test_a_streams_error_comes_first_and_the_last_item_after_it() -> None:
    call = FakeCall()
    Failing(errors.Busy("too many waiting receives")).stream(call, b"")
    first, last = call.sent
    assert service.ReceiveMessageResponse.FromString(first).status.code == definition.TOO_MANY_REQUESTS
    assert last == b"the last item"
    assert call.status is GrpcStatus.OK


def test_an_answer_to_a_client_that_is_gone_is_dropped() -> None:
    call = FakeCall()
    call.cancel()
    failing = Failing(errors.Busy("busy"))
    failing.unary(call, b"")
    failing.stream(call, b"")
    assert call.sent == []


def test_any_call_is_a_sign_of_life(broker: Broker) -> None:
    assert is_a_call(FakeCall()).metadata() == {"x-mq-client-id": CLIENT}
    broker.connect(definition.Settings(client_type=definition.PRODUCER, publishing=definition.Publishing()))
    for _ in range(4):
        broker.clock.advance(100)
        broker.start("QueryRoute", b"")
        broker.clients.sweep()
    assert broker.clients.is_alive(CLIENT)
    assert broker.lost == []
