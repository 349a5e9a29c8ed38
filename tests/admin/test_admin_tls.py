"""The admin port with TLS: its own authority decides who may connect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub
from quarry_mq.server.admin_port.calls.guard import CallSlots
from quarry_mq.server.admin_port.server import AdminServer
from quarry_mq.server.front import LiveTls
from quarry_mq.server.rpc.context import LimitsMet
from tests.admin.broker import AdminBench
from tests.admin.test_admin_server import run
from tests.certificates import Tls, make_tls
from tests.contracts.front_client import open_channel, soon, status_of


@asynccontextmanager
async def serving(tls: LiveTls) -> AsyncIterator[str]:
    bench = AdminBench()
    server = AdminServer(
        bench.service,
        CallSlots(256, LimitsMet()),
    )
    try:
        yield await server.start("127.0.0.1:0", tls)
    finally:
        await server.stop(0)


async def outcome(address: str, tls: Tls | None) -> grpc.StatusCode:
    async with open_channel(address, tls) as channel:
        stub: Any = AdminServiceStub(channel)
        return (await status_of(stub.GetBroker(pb.GetBrokerRequest())))[0]


def test_only_those_whose_certificate_the_authority_signed_may_connect(tmp_path: Path) -> None:
    async def test() -> None:
        tls = make_tls(tmp_path, clients_too=True)
        (tmp_path / "other").mkdir()
        impostor = replace(tls, client=make_tls(tmp_path / "other", clients_too=True).client)
        async with serving(tls.live()) as address:
            assert await outcome(address, tls) is grpc.StatusCode.OK
            for stranger in (None, replace(tls, client=None), impostor):
                assert await outcome(address, stranger) is grpc.StatusCode.UNAVAILABLE

    run(test())


def test_a_new_certificate_leaves_open_connections_alone(tmp_path: Path) -> None:
    async def test() -> None:
        old = make_tls(tmp_path)
        live = old.live()
        async with serving(live) as address, open_channel(address, old) as channel:
            stub: Any = AdminServiceStub(channel)
            await soon(stub.GetBroker(pb.GetBrokerRequest()))
            new = await asyncio.to_thread(make_tls, tmp_path)
            live.show(live.read())
            assert await outcome(address, new) is grpc.StatusCode.OK
            assert await outcome(address, old) is grpc.StatusCode.UNAVAILABLE
            await soon(stub.GetBroker(pb.GetBrokerRequest()))

    run(test())
