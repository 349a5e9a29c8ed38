"""A key of handles for parts that are tested without a store."""

from __future__ import annotations

from typing import Final

from quarry_mq.server.delivery.handles import HandleKey
from quarry_mq.store.message import PhysicalOffset

HANDLE_KEY: Final = HandleKey(bytes(range(32)), PhysicalOffset(0))
