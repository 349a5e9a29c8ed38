"""The h2 front: HTTP/2 and gRPC in plain Python, a few microseconds per call (docs/front.md)."""

from __future__ import annotations

from quarry_mq.server.front.h2.front import H2Front

__all__ = ["H2Front"]
