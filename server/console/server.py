"""Run the console from its first request to its end."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Final

from aiohttp import web

from quarry_mq.server.console.application import Console, read_static_files
from quarry_mq.server.console.calls import ConsoleParts
from quarry_mq.server.console.connections import IDLE_S, Connections

STOP_S: Final = 1.0
"""Seconds that requests may take to end when the console stops."""

SWEEP_S: Final = 5.0
SWITCH_S: Final = 0.0005
"""Seconds a thread computes before it lets others run. By default they are 5 ms, which the broker's loop would wait
again and again while an answer becomes JSON. Applies to the whole process, from the first browser on.
"""

_QUIET: Final = logging.getLogger("quarry_mq.server.console.aiohttp")
"""The logger of aiohttp, disabled: it would log a stack trace for each request that is not HTTP."""


async def serve(listening: socket.socket, parts: ConsoleParts, stopping: asyncio.Event) -> None:
    """Answer requests until `stopping` is set."""
    _QUIET.disabled = True
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
    port = parts.port()
    console = Console(port, read_static_files(), parts.rules, version=parts.version, clock=parts.clock)
    runner = web.AppRunner(
        console.application(),
        handle_signals=False,
        access_log=None,
        logger=_QUIET,
        keepalive_timeout=IDLE_S,
        handler_cancellation=True,
        shutdown_timeout=STOP_S,
    )
    await runner.setup()
    assert runner.server is not None
    console.connections = Connections(runner.server, parts.tls, parts.clock)
    running = [
        asyncio.create_task(each)
        for each in (console.connections.accept(listening), console.connections.sweep(), _sweep(console))
    ]
    try:
        await stopping.wait()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        port.close()  # ends the calls that wait for an answer
        await runner.cleanup()
        console.threads.close()


async def _sweep(console: Console) -> None:
    while True:
        await asyncio.sleep(SWEEP_S)
        console.sessions.sweep()
