"""Point 2 with TLS: a client uses TLS with every address it learns or with none, so routes keep it to its own kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from tests.certificates import Tls, make_tls
from tests.conformance.broker import run as run_test
from tests.conformance.broker import running_broker
from tests.conformance.client import resource
from tests.contracts.front_client import open_channel, soon

DIALLED = "dialled.example:1"
PLAIN, SECURE = "plain.example:2", "secure.example:3"


class Case(NamedTuple):
    """Where clients are sent: `listen` and `tls_listen` stand for the bound addresses, and clients that say what they
    dialled come first. None: no such client gets in.
    """

    tls: str
    has_second: bool
    advertise: str | None
    tls_advertise: str | None
    plain: tuple[str, str] | None
    secure: tuple[str, str] | None


CASES = [
    Case("off", False, None, None, (DIALLED, "listen"), None),
    Case("off", True, None, None, (DIALLED, "listen"), (DIALLED, "tls_listen")),
    Case("off", True, PLAIN, None, (PLAIN, PLAIN), (DIALLED, "tls_listen")),
    Case("off", True, PLAIN, SECURE, (PLAIN, PLAIN), (SECURE, SECURE)),
    Case("optional", False, None, None, (DIALLED, "listen"), (DIALLED, "listen")),
    Case("optional", False, PLAIN, None, (PLAIN, PLAIN), (PLAIN, PLAIN)),
    Case("optional", True, PLAIN, SECURE, (PLAIN, PLAIN), (SECURE, SECURE)),
    Case("required", True, PLAIN, None, None, (PLAIN, PLAIN)),
    Case("required", False, None, None, None, (DIALLED, "listen")),
]


async def ends_of(address: str, tls: Tls | None, dialled: str | None) -> set[str]:
    """Where route and assignment of a topic lead a client."""
    endpoints = None
    if dialled is not None:
        host, _, port = dialled.rpartition(":")
        endpoints = definition.Endpoints(
            scheme=definition.DOMAIN_NAME, addresses=[definition.Address(host=host, port=int(port))]
        )
    async with open_channel(address, tls) as channel:
        stub: Any = MessagingServiceStub(channel)
        metadata = [("x-mq-client-id", "client")]
        route = await soon(
            stub.QueryRoute(service.QueryRouteRequest(topic=resource("orders"), endpoints=endpoints), metadata=metadata)
        )
        request = service.QueryAssignmentRequest(
            topic=resource("orders"), group=resource("billing"), endpoints=endpoints
        )
        assignment = await soon(stub.QueryAssignment(request, metadata=metadata))
    queues = [*route.message_queues, *(each.message_queue for each in assignment.assignments)]
    return {f"{each.host}:{each.port}" for queue in queues for each in queue.broker.endpoints.addresses}


PLACES = [(front, case) for front in ("h2", "grpcio") for case in CASES if (front, case.tls) != ("grpcio", "optional")]


@pytest.mark.parametrize(
    ("front", "case"), PLACES, ids=["-".join(map(str, (front, *case[:4]))) for front, case in PLACES]
)
def test_routes_lead_back_to_a_port_that_speaks_as_the_client_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front: str, case: Case
) -> None:
    tls = make_tls(tmp_path)
    network: Mapping[str, object] = {
        "front": front,
        "tls": case.tls,
        "tls_listen": "127.0.0.1:0" if case.has_second else None,
        "advertise": case.advertise,
        "tls_advertise": case.tls_advertise,
        "tls_certificate": tls.files.certificate,
        "tls_key": tls.files.key,
    }

    async def test() -> None:
        async with running_broker(tmp_path, monkeypatch, network=network) as broker:
            broker.topic("orders", queues=2)
            broker.group("billing")
            bound = {"listen": broker.endpoint}
            if case.has_second:
                secure_listen = broker.broker._identity.secure_listen
                bound["tls_listen"] = "" if secure_listen is None else f"{secure_listen.host}:{secure_listen.port}"
            for wanted, came_to, shown in (
                (case.plain, "listen", None),
                (case.secure, "listen" if case.tls != "off" else "tls_listen", tls),
            ):
                if wanted is None:
                    continue
                said, unsaid = (bound.get(each, each) for each in wanted)
                assert await ends_of(bound[came_to], shown, DIALLED) == {said}
                assert await ends_of(bound[came_to], shown, None) == {unsaid}

    run_test(test())
