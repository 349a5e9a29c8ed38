"""Where a call comes from. The console of the broker itself tells of whom it calls for."""

from __future__ import annotations

from typing import Any, Final

import grpc.aio

from quarry_mq.server.front.grpcio import UNIX, peer_text

BROWSER: Final = "x-quarry-browser"
"""Metadata with the browser's `ip:port`. Believed on the Unix socket alone, which only the broker's own process and
who may do anything with it can open.
"""

_PEER_SIZE_MAX: Final = 64


def caller_peer(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """`ip:port`; `unix` for a call on the Unix socket that does not say of whom it is."""
    peer = context.peer()
    if peer.startswith(UNIX):
        for name, value in context.invocation_metadata() or ():
            if name == BROWSER and isinstance(value, str) and value and len(value) <= _PEER_SIZE_MAX:
                return value
    return peer_text(peer)
