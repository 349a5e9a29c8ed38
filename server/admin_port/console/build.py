"""Build the console of a broker from its settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import structlog

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.addresses import split_address
from quarry_mq.server.admin_port.console.calls import AdminCalls, plain_channel
from quarry_mq.server.console.contract import ConsoleParts, Rules
from quarry_mq.server.console.thread import ConsoleThread
from quarry_mq.server.front import LiveTls
from quarry_mq.server.settings.broker_settings import BrokerSettings

PREFIX: Final = "quarry-console-"
"""The prefix of the name of the folder with the socket."""

SOCKET: Final = "admin"

SOCKET_PATH_MAX: Final = 107
"""Bytes of a socket's path on Linux."""

log = structlog.get_logger(__name__)


class ConsoleBeside:
    """The console of an admin port. `socket` is where the admin port also listens; None without a console.

    A console that was not configured does not keep a broker from its work: if the setting is the default one, a port
    that is taken is logged and left alone.
    """

    def __init__(self, settings: BrokerSettings, tls: LiveTls | None, *, needs_login: bool, clock: Clock) -> None:
        self._network = settings.network
        self._is_asked_for = "console" in settings.network.model_fields_set
        self._goes_around = settings.console_goes_around
        self._tls = tls
        self._needs_login = needs_login
        self._clock = clock
        self.socket: str | None = None
        self.url = ""

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Create the folder for the socket, which only this user may enter. Raises OSError."""
        with contextlib.ExitStack() as folders:
            if self._network.console_address is not None and not self._goes_around:
                try:
                    self.socket = f"unix:{_socket_in(folders)}"
                except OSError as error:
                    self._do_without(error)
            elif self._network.console_address is not None:
                log.warning("there is no console", reason=self._goes_around)
            yield

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve the console, once the admin port listens. Raises OSError that names the address."""
        address, thread = self._network.console_address, None
        if address is not None and self.socket is not None:
            thread = ConsoleThread(address, self._parts(self.socket))
            try:
                thread.start()
                self.url = thread.url
            except OSError as error:
                self._do_without(error)
        try:
            yield
        finally:
            if thread is not None:
                await asyncio.to_thread(thread.stop)

    def _do_without(self, error: OSError) -> None:
        if self._is_asked_for:
            raise OSError(f"network.console: {error}") from error
        log.warning("there is no console", reason=f"{error}: set network.console to another address, or off")

    def _parts(self, address: str) -> ConsoleParts:
        network = self._network
        names = frozenset(each.lower() for each in (split_address(network.console)[0], *network.console_hosts))
        return ConsoleParts(
            port=lambda: AdminCalls(
                plain_channel(address), clock=self._clock, needs_login=self._needs_login, tells_browser=True
            ),
            rules=Rules(names=names),
            version=version("quarry-mq"),
            clock=self._clock,
            tls=self._tls,
        )


def _socket_in(folders: contextlib.ExitStack) -> Path:
    """Return the path of a socket in a new folder. Raises OSError."""
    _remove_left_over(Path(tempfile.gettempdir()))
    folder = folders.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True))
    path = Path(folder) / SOCKET
    if len(bytes(path)) > SOCKET_PATH_MAX:
        raise OSError(f"{path} is too long for the path of a socket: set TMPDIR to a shorter directory")
    return path


def _remove_left_over(folder: Path) -> None:
    """Remove sockets of this user's brokers that were killed, on which no process listens any more."""
    for path in folder.glob(f"{PREFIX}*/{SOCKET}"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(0)  # other users may have put something there that would block
            try:
                if path.parent.lstat().st_uid == os.getuid():
                    probe.connect(str(path))
            except ConnectionRefusedError:
                shutil.rmtree(path.parent, ignore_errors=True)
            except OSError:
                continue
