"""Calls with raw bytes, and what each must come to: an answer with a code, or a gRPC status that is no accident."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.rpc.messaging import METHOD_NAMES, REQUEST_SIZES, SMALL_REQUEST_SIZE
from tests.e2e.broker import Broker
from tests.e2e.load.raw_client import Refused, check_body, stamped_body
from tests.hostile.absurd import answer_type
from tests.hostile.http2 import SERVICE

METHODS: Final = tuple(sorted(METHOD_NAMES))
STREAMS_OUT: Final = frozenset({"ReceiveMessage", "PullMessage"})
TIMEOUT_S: Final = 10.0
UNLIMITED: Final = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
Metadata = Sequence[tuple[str, str]]
CLIENT: Final[Metadata] = (("x-mq-client-id", "hostile"), ("x-mq-language", "PYTHON"), ("x-mq-client-version", "5.1.2"))


class Caller:
    """One connection that calls any method with any bytes."""

    def __init__(self, endpoint: str) -> None:
        self._channel: Any = grpc.insecure_channel(endpoint, options=UNLIMITED)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def call(self, method: str, body: bytes, *, metadata: Metadata = CLIENT, timeout_s: float = TIMEOUT_S) -> list[Any]:
        """All answers, parsed. Raises grpc.RpcError."""
        path = SERVICE + method
        if method == "Telemetry":
            raw = self._channel.stream_stream(path)(iter([body]), metadata=metadata, timeout=timeout_s)
        elif method in STREAMS_OUT:
            raw = self._channel.unary_stream(path)(body, metadata=metadata, timeout=timeout_s)
        else:
            raw = [self._channel.unary_unary(path)(body, metadata=metadata, timeout=timeout_s)]
        parse = answer_type(method).FromString
        return [parse(each) for each in raw]

    def begin(self, method: str, body: bytes, *, metadata: Metadata = CLIENT) -> Any:
        """A call of a stream that is not waited for."""
        path = SERVICE + method
        if method == "Telemetry":
            return self._channel.stream_stream(path)(iter([body]), metadata=metadata, timeout=TIMEOUT_S)
        return self._channel.unary_stream(path)(body, metadata=metadata, timeout=TIMEOUT_S)

    def code(self, method: str, body: bytes, *, metadata: Metadata = CLIENT) -> str:
        """How the call came out: the name of the protocol's code, or of the gRPC status where that is allowed.

        Fails for a call that came to nothing, and for the codes with which a broker admits a fault of its own.
        """
        try:
            answers = self.call(method, body, metadata=metadata)
        except grpc.RpcError as error:
            if method == "Telemetry" and error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                return "INVALID_ARGUMENT"  # the one method whose requests may end so
            size_max = REQUEST_SIZES.get(method, SMALL_REQUEST_SIZE)
            if size_max is not None and len(body) > size_max and error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                return "RESOURCE_EXHAUSTED"  # it was not read
            raise
        if method == "Telemetry" and not answers:
            return "no answer due"
        code = definition.Code.Name(answers[0].status.code)
        assert code not in {"CODE_UNSPECIFIED", "INTERNAL_ERROR", "INTERNAL_SERVER_ERROR"}, answers[0].status
        return code


def assert_unharmed(broker: Broker) -> None:
    """It runs, says it is ready, serves an ordinary client in full, and has met with no fault of its own."""
    assert broker.get("/readyz") == (200, "ready\n")
    assert broker.get("/healthz") == (200, "live\n")
    name = uuid.uuid4().hex
    with Client(broker.endpoint) as client:
        client.subscribe(f"group-{name}", "afterwards")
        client.send("afterwards", name, 1000)
        received: list[str] = []
        while name not in received:
            received = client.receive(f"group-{name}", "afterwards")
            assert received, "the message did not arrive"
    broker.assert_no_stack_trace()


class Client(Caller):
    """An ordinary client, which minds what it is answered."""

    def subscribe(self, group: str, topic: str) -> None:
        command = service.TelemetryCommand()
        command.settings.client_type = definition.SIMPLE_CONSUMER
        command.settings.subscription.group.name = group
        command.settings.subscription.subscriptions.add().topic.name = topic
        (answer,) = self.call("Telemetry", command.SerializeToString())
        _require_ok(answer.status)

    def send(self, topic: str, message_id: str, size: int) -> None:
        """Raises Refused."""
        request = service.SendMessageRequest()
        message = request.messages.add(body=stamped_body(message_id, size))
        message.topic.name = topic
        message.system_properties.message_id = message_id
        (answer,) = self.call("SendMessage", request.SerializeToString())
        _require_ok(answer.status)

    def receive(self, group: str, topic: str, *, polling_s: float = 2.0, invisible_s: int = 300) -> list[str]:
        """The ids of some messages, checked and acknowledged; none when there are none. Raises Refused, Damaged."""
        request = service.ReceiveMessageRequest(batch_size=32)
        request.group.name = group
        request.message_queue.topic.name = topic
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.FromMilliseconds(int(polling_s * 1000))
        first, *others = self.call("ReceiveMessage", request.SerializeToString())
        if first.status.code == definition.MESSAGE_NOT_FOUND:
            return []
        _require_ok(first.status)
        acknowledge = service.AckMessageRequest(group=request.group, topic=request.message_queue.topic)
        for each in others:
            if each.HasField("message"):
                system = each.message.system_properties
                check_body(system.message_id, each.message.body)
                acknowledge.entries.add(message_id=system.message_id, receipt_handle=system.receipt_handle)
        (answer,) = self.call("AckMessage", acknowledge.SerializeToString())
        _require_ok(answer.status)
        return [entry.message_id for entry in acknowledge.entries]


def _require_ok(status: definition.Status) -> None:
    if status.code != definition.OK:
        raise Refused(status)
