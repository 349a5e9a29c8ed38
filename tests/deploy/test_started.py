"""Brokers that are started with what the manifests say: probes, commands, and the routes that they tell."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from tests.certificates import Tls, make_tls
from tests.deploy.manifests import DEPLOY, Manifests, manifests
from tests.e2e.broker import Broker, quarry


def start(folder: Path, text: str, environment: dict[str, str], kind: type[Broker] = Broker) -> Broker:
    """A broker with this text of settings. Its store and its addresses are those of the tests, by flags."""
    file = folder / "quarry.toml"
    file.write_text(text)
    return kind(folder / "store", logs=folder, environment={**environment, "QUARRY_CONFIG": str(file)}).start()


def told(reached: str, dialled: str, tls: Tls | None = None) -> tuple[str, str]:
    """The broker's name and address, as a client learns them that says which address it dialled."""
    host, _, port = dialled.rpartition(":")
    address = definition_pb2.Address(host=host, port=int(port))
    endpoints = definition_pb2.Endpoints(scheme=definition_pb2.DOMAIN_NAME, addresses=[address])
    request = service_pb2.QueryRouteRequest(topic=definition_pb2.Resource(name="orders"), endpoints=endpoints)
    metadata = [("x-mq-client-id", "client"), ("x-mq-language", "PYTHON")]
    trusting = None if tls is None else grpc.ssl_channel_credentials(tls.authority)
    with grpc.insecure_channel(reached) if trusting is None else grpc.secure_channel(reached, trusting) as channel:
        stub: Any = service_pb2_grpc.MessagingServiceStub(channel)
        answer = stub.QueryRoute(request, metadata=metadata, timeout=10)
    (found,) = {
        (queue.broker.name, f"{each.host}:{each.port}")
        for queue in answer.message_queues
        for each in queue.broker.endpoints.addresses
    }
    return found


def probes(these: Manifests) -> Sequence[dict[str, Any]]:
    return [these.broker[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]


# -- one broker, as the chart comes


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    these = manifests("one-broker")
    started = start(tmp_path_factory.mktemp("pod"), these.toml, these.environment(0))
    yield started
    started.close()


def test_every_probe_is_answered(broker: Broker) -> None:
    for probe in probes(manifests("one-broker")):
        assert "scheme" not in probe
        assert broker.get(probe["path"])[0] == 200
    assert broker.get("/no-such-path")[0] == 404


def test_metrics_are_where_the_monitor_looks(broker: Broker) -> None:
    (endpoint,) = manifests("ingress").only("ServiceMonitor")["spec"]["endpoints"]
    status, text = broker.get(endpoint["path"])
    assert status == 200
    assert "quarry_messages_stored_total" in text


def test_the_route_tells_the_name_and_the_address_of_the_pod(broker: Broker) -> None:
    assert told(broker.endpoint, "127.0.0.1:18081") == (
        "quarry-0",
        "quarry-shard-0.quarry.svc.cluster.local:8081",
    )


def test_the_image_s_own_broker_tells_the_address_that_was_dialled(tmp_path: Path) -> None:
    """rmq#8864: a port mapping of Docker, or a port-forward of kubectl."""
    broker = start(tmp_path, (DEPLOY / "image" / "quarry.toml").read_text(), {})
    try:
        assert told(broker.endpoint, "127.0.0.1:18081") == ("quarry", "127.0.0.1:18081")
        assert told(broker.endpoint, "broker:8081") == ("quarry", "broker:8081")
    finally:
        broker.close()


# -- clients inside without TLS, clients outside with TLS


class SecureBroker(Broker):
    """Its HTTP port speaks TLS; as the kubelet, nobody looks at its certificate."""

    def get(self, path: str) -> tuple[int, str]:
        anything = ssl._create_unverified_context()
        with urllib.request.urlopen(f"https://{self.http}{path}", timeout=5, context=anything) as answer:
            return answer.status, answer.read().decode()


def test_clients_inside_and_outside_are_told_what_they_can_reach(tmp_path: Path) -> None:
    """rmq#8864, #6268, rocketmq-clients#742: an address that only one of the two can reach."""
    these = manifests("load-balancers")
    tls = make_tls(tmp_path)
    text = these.toml_of_one
    for name, file in (("tls.crt", tls.files.certificate), ("tls.key", tls.files.key)):
        text = text.replace(f"/etc/quarry-tls/{name}", str(file))
    (outer,) = free_ports(1)
    environment = these.environment(1) | {"QUARRY_NETWORK_TLS_LISTEN": f"127.0.0.1:{outer}"}
    broker = start(tmp_path, text, environment, SecureBroker)
    try:
        for probe in probes(these):
            assert probe["scheme"] == "HTTPS"
            assert broker.get(probe["path"])[0] == 200
        inside = ("quarry-1", "quarry-shard-1.quarry.svc.cluster.local:8081")
        outside = ("quarry-1", "quarry-1.mq.example.com:8443")
        assert told(broker.endpoint, broker.endpoint) == inside
        assert told(f"127.0.0.1:{outer}", "mq.example.com:8443", tls) == outside
        assert told(broker.endpoint, broker.endpoint, tls) == outside

        # as `kubectl exec` runs it: the pod's own context
        context = these.only("ConfigMap")["data"]["contexts.toml"]
        context = context.replace("/etc/quarry-tls/ca.crt", str(tls.authority_path))
        context = re.sub(r"localhost:8082", broker.admin.replace("127.0.0.1", "localhost"), context)
        (tmp_path / "contexts.toml").write_text(context)
        named = {"QUARRY_CONTEXTS": str(tmp_path / "contexts.toml"), "QUARRY_CONTEXT": environment["QUARRY_CONTEXT"]}
        listed = quarry("topic", "list", environment=named)
        assert listed.returncode == 0, listed.stderr
        assert "orders" in listed.stdout
        assert quarry("topic", "list", "--admin", broker.admin).returncode != 0
    finally:
        broker.close()
