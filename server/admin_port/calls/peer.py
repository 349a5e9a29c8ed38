"""The address from which a call comes. The broker's own console reports the address of the browser."""

from __future__ import annotations

from typing import Any, Final

import grpc.aio

from quarry_mq.server.front.grpcio import UNIX, peer_text

BROWSER: Final = "x-quarry-browser"
"""Metadata with the browser's `ip:port`. It is believed on the Unix socket alone.

Only the broker's own process, and users who may do anything with that process, can open the socket.
"""

_PEER_SIZE_MAX: Final = 64


def caller_peer(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return `ip:port`; `unix` for a call on the Unix socket that does not name a browser."""
    peer = context.peer()
    if peer.startswith(UNIX):
        for name, value in context.invocation_metadata() or ():
            if name == BROWSER and isinstance(value, str) and value and len(value) <= _PEER_SIZE_MAX:
                return value
    return peer_text(peer)
