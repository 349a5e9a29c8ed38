"""Run the console's listener and thread. The code that serves requests is loaded when the first browser connects: most
brokers never see one, and save its time and memory.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from threading import Thread
from typing import Final

import structlog

from quarry_mq.server.addresses import split_address
from quarry_mq.server.console.calls import ConsoleParts

BACKLOG: Final = 64
log = structlog.get_logger(__name__)


class ConsoleThread:
    """Serve from `start` to `stop`, on a separate event loop: neither HTTP nor JSON delays the broker's loop."""

    def __init__(self, address: str, parts: ConsoleParts) -> None:
        """`address` is `host:port`."""
        self._address = address
        self._parts = parts
        self._listening: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started: Future[None] = Future()
        self._thread = Thread(target=self._run, name="console", daemon=True)

    @property
    def url(self) -> str:
        return f"{'http' if self._parts.tls is None else 'https'}://{self._address}/"

    def start(self) -> None:
        """Listen. Raises OSError that names the address."""
        host, port = split_address(self._address)
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            self._listening = socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
        except OSError as cause:
            raise OSError(f"cannot listen on {self._address}: {cause.strerror or cause}") from cause
        self._listening.setblocking(False)  # noqa: FBT003 - as the library has it
        self._address = f"{host}:{self._listening.getsockname()[1]}"
        self._thread.start()

    def stop(self) -> None:
        """Block until all requests have ended. No effect when the console was not started."""
        if self._listening is None:
            return
        self._started.result()
        assert self._loop is not None
        assert self._stopping is not None
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            log.debug("the console had ended already")
        self._thread.join()
        self._listening.close()
        self._listening = None

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except Exception:
            log.exception("the console has ended")

    async def _serve(self) -> None:
        assert self._listening is not None
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_exception_handler(_tell)
        self._started.set_result(None)
        if not await _first_comes(self._listening, self._stopping):
            return
        from quarry_mq.server.console.server import serve

        await serve(self._listening, self._parts, self._stopping)


async def _first_comes(listening: socket.socket, stopping: asyncio.Event) -> bool:
    """Return whether a browser connects before the console is to stop."""
    loop, comes = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(listening, comes.set)
    waiting = [loop.create_task(each.wait()) for each in (comes, stopping)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(listening)
    for each in waiting:
        each.cancel()
    return not stopping.is_set()


def _tell(_loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log at debug level what asyncio would log as an error, such as failed handshakes."""
    log.debug("console connection", what=context.get("message"), error=str(context.get("exception", "")))
