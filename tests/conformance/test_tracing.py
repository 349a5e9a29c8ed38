"""Calls as spans, exported to a collector of the test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.server.observability import tracing
from quarry_mq.server.settings.sections import TracingSection
from tests.conformance.broker import RunningBroker
from tests.conformance.client import Client, message
from tests.conformance.conftest import WithBroker

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
TRACED = f"00-{TRACE}-{SPAN}-01"
NOT_TRACED = f"00-{TRACE}-{SPAN}-00"


class Collector:
    """Takes OTLP over HTTP and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.endpoint = ""

    def named(self, name: str) -> Any:
        [span] = [each for each in self.spans if each.name == name]
        return span


@contextmanager
def collector() -> Iterator[Collector]:
    collected = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") is None:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        collected.spans.extend(scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected.endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def attributes(span: Any) -> Mapping[str, str | int]:
    return {
        each.key: each.value.int_value if each.value.HasField("int_value") else each.value.string_value
        for each in span.attributes
    }


def test_a_send_a_receive_and_an_acknowledgement_are_parts_of_their_clients_traces(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.receive("billing", "orders")
            [sent] = await client.sent(message("orders", b"secret", trace_context=TRACED, message_id="id-1"))
            assert sent == "id-1"
            client.metadata.append(("traceparent", TRACED))
            received = await client.receive("billing", "orders", polling_s=5)
            assert received.messages[0].system_properties.trace_context == TRACED
            await client.ack("billing", "orders", *received.handles)

    with collector() as collected:
        with_broker(test, tracing={"endpoint": collected.endpoint, "sample_ratio": 0.0})
    assert len(collected.spans) == 3
    for each in collected.spans:
        assert (each.trace_id.hex(), each.parent_span_id.hex()) == (TRACE, SPAN)
        assert attributes(each)["messaging.destination.name"] == "orders"
        assert attributes(each)["messaging.system"] == "rocketmq"
        assert attributes(each)["rpc.response.status_code"] == "OK"
        assert each.end_time_unix_nano > each.start_time_unix_nano
        assert b"secret" not in each.SerializeToString()
    assert attributes(collected.named("SendMessage"))["messaging.message.id"] == "id-1"
    receive = collected.named("ReceiveMessage")
    assert attributes(receive)["messaging.consumer.group.name"] == "billing"
    assert [link.trace_id.hex() for link in receive.links] == [TRACE]
    assert attributes(collected.named("AckMessage"))["messaging.batch.message_count"] == 1


@pytest.mark.parametrize(("ratio", "count"), [(1.0, 2), (0.0, 0)])
def test_calls_are_traced_by_the_ratio_where_no_client_has_decided(
    with_broker: WithBroker, ratio: float, count: int
) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))
            await client.sent(message("orders", trace_context=NOT_TRACED))
            await client.sent(message("orders", trace_context="no trace"))

    with collector() as collected:
        with_broker(test, tracing={"endpoint": collected.endpoint, "sample_ratio": ratio})
    assert len(collected.spans) == count


def test_what_goes_wrong_and_what_is_cancelled_ends_its_span(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            answer = await client.send(message("TBW102"))
            assert answer.status.code != definition.OK
            await client.raw("SendMessage", b"\xff\xff")
            call = client.start_receive("billing", "orders", polling_s=20, deadline_s=30)
            assert (await client.receive("audit", "orders")).code == definition.MESSAGE_NOT_FOUND
            call.cancel()
            await client.receive("audit", "orders")

    with collector() as collected:
        with_broker(test, tracing={"endpoint": collected.endpoint, "sample_ratio": 1.0})
    failed = [each.status.message for each in collected.spans if each.name == "SendMessage" and each.status.code == 2]
    assert len(failed) == 2
    assert len([each for each in collected.spans if each.name == "ReceiveMessage"]) == 3


def test_a_collector_that_is_not_there_costs_spans_and_nothing_else(with_broker: WithBroker) -> None:
    async def test(broker: RunningBroker) -> None:
        broker.topic("orders", queues=1)
        async with Client(broker.endpoint) as client:
            await client.sent(message("orders"))

    with_broker(test, tracing={"endpoint": "http://127.0.0.1:9/v1/traces", "sample_ratio": 1.0})


def test_without_the_setting_nothing_is_imported() -> None:
    code = (
        "import sys, quarry_mq.server.main, quarry_mq.server.rpc.messaging; "
        "print(any(m.startswith('opentelemetry') for m in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "LIBRARIES", ("no_such_library.at_all",))
    tracing.require_tracing(TracingSection())
    with pytest.raises(tracing.TracingUnavailable, match=r"pip install 'quarry-mq\[tracing\]'"):
        tracing.require_tracing(TracingSection(endpoint="http://127.0.0.1:4318/v1/traces"))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:4318", "ftp://host/x", "http://", "http://user:secret@host/v1/traces"])
def test_an_endpoint_is_a_url_without_a_password(endpoint: str) -> None:
    with pytest.raises(ValueError, match=r"http|password"):
        TracingSection(endpoint=endpoint)
