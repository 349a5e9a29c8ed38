"""Supervise background tasks that must run for as long as the broker does, and callbacks that must not stop others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from quarry_mq.server.errors import BrokerFailed

log = structlog.get_logger(__name__)


class Supervisor:
    """Stop the broker when a background task ends unexpectedly.

    A broker without its housekeeping, for example, looks well and is not: clients that are gone keep their messages.
    It must not go on so, and only a new process is known to be whole. So the first unexpected end stops the broker.
    """

    def __init__(self, failed: Callable[[BrokerFailed], None]) -> None:
        """`failed` is called at the first unexpected end."""
        self._failed = failed
        self._failure: BrokerFailed | None = None

    @asynccontextmanager
    async def running(self, name: str, coroutine: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run the coroutine, which never returns of its own accord, until the context is left."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        task.add_done_callback(self._ended)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def raise_failure(self) -> None:
        """Raise BrokerFailed if a task has ended unexpectedly."""
        if self._failure is not None:
            raise self._failure

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error, name = task.exception(), task.get_name()
        log.error("background task ended", task=name, exc_info=error)
        if self._failure is None:
            how = "returned" if error is None else f"ended with {type(error).__name__}: {error}"
            self._failure = BrokerFailed(f"the broker stops: its {name} {how}")
            self._failure.__cause__ = error
            self._failed(self._failure)


def run_guarded(callback: Callable[..., None], *arguments: object) -> None:
    """Run a callback so that its failure stops no other callback."""
    try:
        callback(*arguments)
    except Exception:
        log.exception("callback failed", callback=repr(callback))


async def until_set(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait until the event is set, or for `timeout_s`; return whether it was set."""
    try:
        # not wait_for: in Python 3.11 it loses a cancellation that comes together with the event
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
