"""An error that a broker gave is told apart from one that gRPC gave because no broker answers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from quarry_mq.cli.online.connection.administration import refusal

REASON = "a verification runs already"


@pytest.fixture
def address() -> Iterator[str]:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, REASON)

    server = grpc.server(ThreadPoolExecutor(1))
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.Service", {"Call": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def _error(address: str) -> grpc.RpcError:
    with grpc.insecure_channel(address) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/a.Service/Call")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"")
    return raised.value


def test_the_reason_of_a_broker_stands_alone(address: str) -> None:
    assert refusal(_error(address), address, plain=(grpc.StatusCode.UNAVAILABLE,)) == REASON


def test_no_broker_is_told_as_by_every_command() -> None:
    told = refusal(_error("127.0.0.1:1"), "127.0.0.1:1", plain=(grpc.StatusCode.UNAVAILABLE,))
    assert told.startswith("127.0.0.1:1: no answer from a broker (")
