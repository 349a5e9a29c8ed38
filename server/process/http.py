"""Serve `/metrics`, `/healthz` and `/readyz` on the HTTP port, in separate threads: it must answer while the event loop
hangs or a store recovers.

It is made to be probed by anybody for years: each connection is served once, may last `CONNECTION_S` in all and send
less than `REQUEST_SIZE_MAX` bytes, and only `CONNECTIONS_MAX` are open at a time (rmq#8875: a TCP probe leaked a
connection each time until memory ran out). When all are taken, the oldest of the address with most is closed:
neither clients that never end their request nor those that connect all the time keep a probe from being answered.
"""

from __future__ import annotations

import errno
import hmac
import json
import socket
import socketserver
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from http import HTTPStatus
from http.client import HTTPException
from io import BufferedIOBase
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import CollectorRegistry, make_wsgi_app

from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.server.addresses import network_of, plain_address, split_address
from quarry_mq.server.front import LiveTls
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.wire.status import without_places
from quarry_mq.store.errors import Invalid

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = structlog.get_logger(__name__)

CONNECTIONS_MAX: Final = 32  # a few probes and scrapers; more would be a mistake
THREADS_MAX: Final = 2 * CONNECTIONS_MAX  # threads of closed connections are about to end
CONNECTION_S: Final = 10.0  # the default timeout of a scrape by Prometheus
REQUEST_SIZE_MAX: Final = 16 * 1024
"""Bytes of a request that are read. The library would keep a hundred headers of 64 KiB, each several times."""

BACKLOG: Final = 512  # a peer that connects again and again must not keep a probe from being accepted
SWEEP_S: Final = 0.1
REFUSED_WAIT_S: Final = 0.1  # after the system has refused a connection: it has no descriptors left


class TokenFile:
    """A file holds the token that reading the metrics needs. It is read each time, because it may be exchanged."""

    def __init__(self, path: Path) -> None:
        """Raises Invalid that names the file."""
        self._path = path
        try:
            self._read()
        except (OSError, ValueError) as cause:
            raise Invalid(f"{path}: {cause}") from cause

    def is_in(self, authorization: str) -> bool:
        """Return whether the `Authorization` header holds the token. A file that cannot be read holds no token."""
        try:
            wanted = self._read()
        except (OSError, ValueError) as cause:
            log.error("the token of the metrics cannot be read", file=str(self._path), reason=str(cause))
            return False
        scheme, _, given = authorization.partition(" ")
        # the server decodes headers as Latin-1
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode("latin-1", "replace"), wanted)

    def _read(self) -> bytes:
        token = self._path.read_bytes().strip()
        if not token:
            raise ValueError("the file contains no token")
        return token


class HttpEndpoint:
    """Serve from `start` to `stop`. Prometheus metrics come from `registry`, the rest from `health`."""

    def __init__(
        self,
        address: str,
        registry: CollectorRegistry,
        health: HealthState,
        *,
        tls: LiveTls | None = None,
        metrics_token: TokenFile | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._clock = clock or SystemClock()
        self._application = _application(registry, health, metrics_token, self._clock)
        self._server: _Server | None = None
        self._thread: Thread | None = None

    @property
    def address(self) -> str:
        """Return `host:port`; the bound one once the endpoint has started."""
        return self._address

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self._address}"

    def start(self) -> None:
        """Listen. Raises OSError that names the address."""
        host, port = split_address(self._address)
        try:
            self._server = _Server(host, port, self._application, self._clock, self._tls)
        except OSError as cause:
            raise OSError(f"cannot listen on {self._address}: {cause.strerror or cause}") from cause
        self._address = f"{host}:{self._server.server_port}"
        self._thread = Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": SWEEP_S}, name="http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = self._thread = None


def _application(
    registry: CollectorRegistry, health: HealthState, metrics_token: TokenFile | None, clock: Clock
) -> WSGIApplication:
    metrics = cast("WSGIApplication", make_wsgi_app(registry))
    one_scrape = Lock()  # other scrapes wait and use nothing meanwhile: many at once would delay the event loop

    def serve(environment: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        answer = _text_answer(start_response)
        if environment["REQUEST_METHOD"] != "GET":
            return answer(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is supported")
        match environment["PATH_INFO"]:
            case "/metrics":
                if metrics_token is not None and not metrics_token.is_in(environment.get("HTTP_AUTHORIZATION", "")):
                    return answer(HTTPStatus.UNAUTHORIZED, "metrics require the token", ("WWW-Authenticate", "Bearer"))
                with one_scrape:
                    return metrics(environment, start_response)
            case "/healthz":
                now = health.look()
                return answer(_status(now.is_live), without_places(now.liveness))
            case "/readyz":
                now = health.look()
                return answer(_status(now.is_ready), without_places(now.readiness))
            case "/replica":
                now = health.look()
                said = {"role": "primary", **now.replica, "serving": now.is_serving}
                document = {**said, "state": without_places(now.readiness), "atMs": clock.wall_ms()}
                return answer(_status(now.is_ready_as_replica), json.dumps(document))
            case _:
                return answer(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz, /readyz and /replica")

    return serve


def _status(is_well: bool) -> HTTPStatus:  # noqa: FBT001 - what it is of says its name
    return HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE


def _text_answer(start_response: StartResponse) -> Callable[..., Iterable[bytes]]:
    def answer(status: HTTPStatus, text: str, *more: tuple[str, str]) -> Iterable[bytes]:
        body = f"{text}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *more]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return answer


class _Open(NamedTuple):
    """A connection that is being served."""

    address: str
    deadline_s: float


class _Bounded(BufferedIOBase):
    """Read what a peer sends, up to `REQUEST_SIZE_MAX` bytes."""

    def __init__(self, whole: BufferedIOBase) -> None:
        self._whole = whole
        self._left = REQUEST_SIZE_MAX

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line. Raises HTTPException for a request that is too large, as the library expects, and for one that
        breaks off: the library would serve it.
        """
        line = self._whole.readline(self._left if size is None or size < 0 else min(size, self._left))
        self._left -= len(line)
        if not self._left:
            raise HTTPException(f"a request has less than {REQUEST_SIZE_MAX} bytes")
        if not line and self._left < REQUEST_SIZE_MAX:
            raise HTTPException("a request ends before its headers do")
        return line

    def close(self) -> None:
        self._whole.close()
        super().close()


class _RequestHandler(WSGIRequestHandler):
    timeout = CONNECTION_S

    def setup(self) -> None:
        super().setup()
        self.rfile = _Bounded(self.rfile)

    def handle(self) -> None:
        try:
            super().handle()
        except HTTPException:  # in the request's first line
            self.requestline = self.request_version = self.command = ""
            self.send_error(HTTPStatus.REQUEST_URI_TOO_LONG)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the base class
        log.debug("http", peer=self.client_address[0], line=format % args)


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = BACKLOG
    block_on_close = False

    def __init__(self, host: str, port: int, application: WSGIApplication, clock: Clock, tls: LiveTls | None) -> None:
        self._tls = tls
        self.address_family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        self._clock = clock
        self._lock = Lock()
        self._nobody = Event()
        self._open: dict[socket.socket, _Open] = {}  # guarded by _lock, the oldest first
        self._served = 0  # guarded by _lock: threads of these, and of closed connections whose threads still run
        super().__init__((host.strip("[]"), port), _RequestHandler)
        self.set_app(application)

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the name service for this host's name and may wait for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            request, client_address = super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # the listener stays readable: without a pause this thread would loop forever
                with self._lock:
                    self._end_one()
                self._nobody.wait(REFUSED_WAIT_S)
            raise
        if self._tls is None:
            return request, client_address
        context = self._tls.now.context
        return context.wrap_socket(request, server_side=True, do_handshake_on_connect=False), client_address

    def process_request(self, request: Any, client_address: Any) -> None:
        plain = plain_address(client_address[0])
        address = client_address[0] if plain is None else str(network_of(plain))
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                self._end_one()
            has_thread = self._served < THREADS_MAX
            if has_thread:
                self._open[request] = _Open(address, self._clock.monotonic_s() + CONNECTION_S)
                self._served += 1
        if not has_thread:
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread could be started, so none will remove the connection.
            self._remove(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._remove(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        if isinstance(request, ssl.SSLSocket):
            # here and not where connections are accepted: a peer may be slow
            request.settimeout(CONNECTION_S)
            try:
                request.do_handshake()
            except OSError as error:
                log.debug("http TLS handshake failed", peer=client_address[0], reason=str(error))
                return
        super().finish_request(request, client_address)

    def _remove(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._served -= 1

    def _end_one(self) -> None:
        """Close the oldest connection of the address with most: a peer that floods the port closes its own."""
        counts = Counter(each.address for each in self._open.values())
        if counts:
            busiest, _ = counts.most_common(1)[0]
            self._end(next(request for request, each in self._open.items() if each.address == busiest))

    def _end(self, request: socket.socket) -> None:
        """Close a connection: shutting its socket is enough to wake its thread."""
        del self._open[request]
        _shut(request)

    def service_actions(self) -> None:
        """Close connections whose time is over."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            for request in [request for request, each in self._open.items() if each.deadline_s <= now_s]:
                self._end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as in the base class
        log.debug("http connection failed", peer=client_address[0], exc_info=True)


def _shut(request: socket.socket) -> None:
    try:
        # not the method of SSLSocket: it takes TLS away from the thread that reads
        socket.socket.shutdown(request, socket.SHUT_RDWR)
    except OSError:
        log.debug("http connection was gone already")
