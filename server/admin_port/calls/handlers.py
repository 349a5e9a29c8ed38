"""The four kinds of gRPC handlers, for interceptors that put something before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

KINDS: Final[dict[str, Callable[..., grpc.RpcMethodHandler[Any, Any]]]] = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}
"""By the attribute that holds the behaviour: what makes a handler of one."""


def kind_of(handler: Any) -> str:
    """Which of `KINDS` it is."""
    return next(each for each in KINDS if getattr(handler, each) is not None)
