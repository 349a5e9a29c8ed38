"""Waiting that ends by itself."""

from __future__ import annotations

import asyncio


async def until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Until the event is set, or for so long; returns whether it was set."""
    try:
        # not wait_for: that of Python 3.11 forgets a cancellation that comes together with the event
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
