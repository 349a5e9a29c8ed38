"""A broker that is started with what the manifests say: probes, metrics, and the route that it tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from server._generated.apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from tests.deploy.manifests import DEPLOY, Manifests, manifests
from tests.e2e.broker import Broker

VARIANT = "one-broker"


def start(folder: Path, file: Path, environment: dict[str, str]) -> Broker:
    """A broker with this file of settings. Its store and its addresses are those of the tests, by flags."""
    return Broker(folder / "store", logs=folder, environment={**environment, "QUARRY_CONFIG": str(file)}).start()


def told(broker: Broker, dialled: str = "") -> tuple[str, str]:
    """The broker's name and address, as a client learns them that dialled this address."""
    host, _, port = (dialled or broker.endpoint).rpartition(":")
    address = definition_pb2.Address(host=host, port=int(port))
    endpoints = definition_pb2.Endpoints(scheme=definition_pb2.IPv4, addresses=[address])
    topic = definition_pb2.Resource(name="orders")
    with grpc.insecure_channel(broker.endpoint) as channel:
        request = service_pb2.QueryRouteRequest(topic=topic, endpoints=endpoints)
        metadata = [("x-mq-client-id", "client"), ("x-mq-language", "PYTHON")]
        stub: Any = service_pb2_grpc.MessagingServiceStub(channel)  # type: ignore[no-untyped-call]
        answer = stub.QueryRoute(request, metadata=metadata, timeout=10)
    (found,) = {
        (queue.broker.name, f"{each.host}:{each.port}")
        for queue in answer.message_queues
        for each in queue.broker.endpoints.addresses
    }
    return found


@pytest.fixture(scope="module")
def these() -> Manifests:
    return manifests(VARIANT)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, these: Manifests) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("pod")
    file = folder / "quarry.toml"
    file.write_text(these.only("ConfigMap")["data"]["quarry.toml"])
    started = start(folder, file, these.environment(0))
    yield started
    started.close()


def test_every_probe_is_answered(broker: Broker, these: Manifests) -> None:
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = these.broker[name]["httpGet"]
        assert "scheme" not in probe
        assert broker.get(probe["path"])[0] == 200, name
    assert broker.get("/no-such-path")[0] == 404


def test_metrics_are_where_the_monitor_looks(broker: Broker) -> None:
    (endpoint,) = manifests("ingress").only("ServiceMonitor")["spec"]["endpoints"]
    status, text = broker.get(endpoint["path"])
    assert status == 200
    assert "quarry_messages_stored_total" in text


def test_the_route_tells_the_name_and_the_address_of_the_pod(broker: Broker, these: Manifests) -> None:
    assert told(broker) == ("quarry-0", "quarry-0.quarry-headless.quarry.svc.cluster.local:8081")


def test_the_image_s_own_broker_tells_the_address_that_was_dialled(tmp_path: Path) -> None:
    """rmq#8864: a port mapping of Docker, or a port-forward of kubectl."""
    broker = start(tmp_path, DEPLOY / "image" / "quarry.toml", {})
    try:
        assert told(broker, "127.0.0.1:18081") == ("quarry", "127.0.0.1:18081")
        assert told(broker, "broker:8081") == ("quarry", "broker:8081")
    finally:
        broker.close()
