"""Wait for an event with a timeout."""

from __future__ import annotations

import asyncio


async def until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, or for `timeout_s`; return whether it was set."""
    try:
        # not wait_for: in Python 3.11 it loses a cancellation that comes together with the event
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
