"""The console is an application of aiohttp: it decides who may ask, and which handler answers.

The files of the pages are read once, so that no request names a file of the machine.
"""

from __future__ import annotations

import asyncio
import gzip
import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from aiohttp import hdrs, web

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.console.calls import AdminPort, Caller, CallFailed, Identity, OpenCall, Rules, Threads, whole
from quarry_mq.server.console.connections import Connections
from quarry_mq.server.console.sessions import FETCH_SITES, Session, Sessions, is_own_host, is_own_origin, port_of
from quarry_mq.store.security.model import SECRET_TEXT, USER_NAME

log = structlog.get_logger(__name__)

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
"""Content types by file suffix; files with other suffixes are not served."""

NOT_COMPRESSED: Final = (".png", ".ico", ".woff2")

IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""Browsers keep a file for a year, and do not ask for it again: its address changes with its contents."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the pages. `zipped` is None if compression does not make it smaller."""

    content_type: str
    etag: str
    plain: bytes
    zipped: bytes | None


class StaticFiles(NamedTuple):
    """The files of the pages, by their relative path with `/`, and a digest of all of them.

    The index page asks for files below `/static/DIGEST/`, and modules name each other by relative paths. So a browser
    keeps a file without asking again, and a page never gets a module of another version from its cache.
    """

    digest: str
    by_path: dict[str, StaticFile]


def read_static_files(folder: Path = FOLDER) -> StaticFiles:
    """Read the files below `folder`. Raises OSError."""
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in TYPES
    }
    of_each = b"".join(sha256(path.encode() + b"\0" + plain).digest() for path, plain in found.items())
    digest = sha256(of_each).hexdigest()[:16]
    found[INDEX] = found[INDEX].replace(b'"/static/', f'"/static/{digest}/'.encode())
    return StaticFiles(digest, {path: _static_file(path, plain) for path, plain in found.items()})


def _static_file(path: str, plain: bytes) -> StaticFile:
    suffix = Path(path).suffix
    zipped = None if suffix in NOT_COMPRESSED else gzip.compress(plain, mtime=0)
    return StaticFile(
        content_type=TYPES[suffix],
        etag=sha256(plain).hexdigest()[:32],
        plain=plain,
        zipped=zipped if zipped is not None and len(zipped) < len(plain) else None,
    )


UNAUTHENTICATED: Final = "UNAUTHENTICATED"

STATUSES: Final = {
    "INVALID_ARGUMENT": HTTPStatus.BAD_REQUEST,
    UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    "PERMISSION_DENIED": HTTPStatus.FORBIDDEN,
    "NOT_FOUND": HTTPStatus.NOT_FOUND,
    "ALREADY_EXISTS": HTTPStatus.CONFLICT,
    "ABORTED": HTTPStatus.CONFLICT,
    "FAILED_PRECONDITION": HTTPStatus.PRECONDITION_FAILED,
    "OUT_OF_RANGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "RESOURCE_EXHAUSTED": HTTPStatus.TOO_MANY_REQUESTS,
    "UNIMPLEMENTED": HTTPStatus.NOT_IMPLEMENTED,
    "UNAVAILABLE": HTTPStatus.SERVICE_UNAVAILABLE,
    "DEADLINE_EXCEEDED": HTTPStatus.SERVICE_UNAVAILABLE,
    "CANCELLED": HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP statuses of gRPC's codes; any other code is the broker's fault."""


def http_status(failure: CallFailed) -> int:
    if failure.status is not None:
        return failure.status
    return STATUSES.get(failure.code, HTTPStatus.INTERNAL_SERVER_ERROR)


REQUEST_SIZE_MAX: Final = 1024 * 1024
"""Bytes that the body of a request may have, as many as the admin port takes."""

READ_S: Final = 10.0
"""Seconds within which the body of a request must arrive."""

WRITE_S: Final = 30.0
"""Seconds within which a browser must accept an answer, or a line of a stream."""

JSON: Final = "application/json"
NO_BODY: Final = "X-Quarry-Console"
"""The header by which a DELETE without a body shows that our page made it: pages of other sites may not set it."""

IDLE: Final = "X-Quarry-Idle"
"""The header with the whole seconds since the user last acted: a page's own requests do not prolong a session."""

IDLE_DIGITS_MAX: Final = 9

MEMBER: Final = "member"
ALL_MEMBERS: Final = "members"
"""The parameters of a call's address that say whom the broker asks: the member of this name, or all."""

HEADERS: Final = {
    hdrs.SERVER: "quarry",
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer."""

STREAM_HEADERS: Final = {
    hdrs.CONTENT_TYPE: "application/x-ndjson",
    hdrs.CACHE_CONTROL: "no-store",
    "X-Accel-Buffering": "no",
}

FAULT: Final = ("INTERNAL", "internal error: see the broker's log")

CODES: Final = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "UNIMPLEMENTED",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "OUT_OF_RANGE",
}
"""Codes of requests that aiohttp refuses by itself; for all other statuses it is INVALID_ARGUMENT."""

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Console:
    """Hold the console's state and handlers. `connections` must be set before the first request."""

    connections: Connections

    def __init__(self, port: AdminPort, files: StaticFiles, rules: Rules, *, version: str, clock: Clock) -> None:
        self._port = port
        self._files = files
        self._rules = rules
        self._version = version
        self.threads = Threads()
        self.sessions = Sessions(clock)
        self._needs_login: bool | None = True if rules.entry is not None else None
        self._finding_out: asyncio.Task[bool] | None = None
        self._nobodys = Session(None, None, Identity(None, None), 0, 0)
        """The session of all callers when nobody needs to log in."""

    def application(self) -> web.Application:
        application = web.Application(client_max_size=REQUEST_SIZE_MAX, middlewares=[self._guarded])
        application.on_response_prepare.append(_add_headers)
        application.add_routes(
            [
                web.get("/", self._index),
                web.get("/static/{digest}/{path:.+}", self._static),
                web.get("/api/session", self._get_session),
                web.post("/api/session", self._log_in),
                web.delete("/api/session", self._log_out),
                web.post("/api/call/{service}/{method}", self._call),
                web.post("/api/stream/{service}/{method}", self._stream),
                *([web.get("/enter", self._enter)] if self._rules.entry is not None else []),
            ]
        )
        return application

    # -- what every request goes through

    @web.middleware
    async def _guarded(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        self.connections.begin(request.protocol)
        try:
            response = await self._answered(request, handler)
            async with asyncio.timeout(WRITE_S):
                await response.prepare(request)
                await response.write_eof()
        except TimeoutError:
            _abort(request)
            raise
        finally:
            self.connections.end(request.protocol)
        return response

    async def _answered(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        try:
            await self._require_own(request)
            return await handler(request)
        except CallFailed as failure:
            return _refusal(http_status(failure), failure.code, failure.message)
        except web.HTTPException as refused:
            return _refusal(refused.status, CODES.get(HTTPStatus(refused.status), "INVALID_ARGUMENT"), refused.reason)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("the console failed", method=request.method, path=request.path)
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR, *FAULT)

    async def _require_own(self, request: web.Request) -> None:
        """Raise CallFailed if a page of another site may have made the request."""
        host = request.headers.get(hdrs.HOST, "")
        if (self._rules.is_always_own or not await self._must_log_in()) and not is_own_host(host, self._rules.names):
            raise CallFailed(
                "PERMISSION_DENIED",
                f"the host name {host!r:.200} is not allowed for the console: use an IP address, or set "
                "network.console_hosts",
            )
        if request.method in {hdrs.METH_GET, hdrs.METH_HEAD}:
            return
        has_body_type = request.content_type == JSON and hdrs.CONTENT_TYPE in request.headers
        if not has_body_type and not (request.method == hdrs.METH_DELETE and request.headers.get(NO_BODY) == "1"):
            raise CallFailed("INVALID_ARGUMENT", f"Content-Type: must be {JSON}", status=415)
        origin, site = request.headers.get(hdrs.ORIGIN), request.headers.get("Sec-Fetch-Site")
        if (origin is not None and not is_own_origin(origin, host)) or (site is not None and site not in FETCH_SITES):
            raise CallFailed("PERMISSION_DENIED", "Origin: the request comes from a page of another site")

    # -- sessions

    async def _must_log_in(self) -> bool:
        if self._needs_login is None:
            if self._finding_out is None:  # once for all requests that wait for it
                self._finding_out = asyncio.create_task(self.threads.run(self._port.needs_login))
                self._finding_out.add_done_callback(self._found_out)
            return await asyncio.shield(self._finding_out)
        return self._needs_login

    def _found_out(self, finding_out: asyncio.Task[bool]) -> None:
        self._finding_out = None
        if not finding_out.cancelled() and finding_out.exception() is None:
            self._needs_login = finding_out.result()

    async def _session(self, request: web.Request) -> Session | None:
        """Return the request's session; None if the caller must log in first."""
        if not await self._must_log_in():
            return self._nobodys
        session = self.sessions.find(_session_id(request), _idle_s(request))
        if session is not None:
            self.connections.known(request.protocol, f"user {session.user}")
        return session

    async def _require_session(self, request: web.Request) -> Session:
        session = await self._session(request)
        if session is None:
            raise CallFailed(UNAUTHENTICATED, "log in first: there is no session, or it has ended")
        return session

    async def _get_session(self, request: web.Request) -> web.StreamResponse:
        needs_login = await self._must_log_in()
        session = await self._session(request)
        if session is self._nobodys and session.identity.broker is None:
            caller = _caller(session, request)
            session.identity = await self.threads.run_login(lambda: self._port.identity(caller), self._address(request))
        identity = Identity(None, None) if session is None else session.identity
        fields = {
            "needsLogin": needs_login,
            "user": None if session is None else session.user,
            "broker": identity.broker,
            "cluster": identity.cluster,
            "version": self._version,
        }
        return _json_response(json.dumps(fields).encode())

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        if not await self._must_log_in():
            raise CallFailed("FAILED_PRECONDITION", "the broker has no authentication (security.authentication)")
        user, secret = _credentials(await _body(request))
        caller = Caller(user, secret, _peer(request))

        def find_out() -> Identity:
            self._port.log_in(caller)
            return self._port.identity(caller)

        identity = await self.threads.run_login(find_out, self._address(request))
        return self._begin(request, web.Response(status=HTTPStatus.NO_CONTENT), user, secret, identity)

    async def _enter(self, request: web.Request) -> web.StreamResponse:
        entry = self._rules.entry
        if entry is None or not hmac.compare_digest(request.query.get("key", "").encode(), entry.key.encode()):
            raise CallFailed("PERMISSION_DENIED", "key: not the key of this console")
        caller = Caller(entry.user, entry.secret, _peer(request))
        identity = await self.threads.run_login(lambda: self._port.identity(caller), self._address(request))
        response = web.Response(status=HTTPStatus.SEE_OTHER, headers={hdrs.LOCATION: "/"})
        return self._begin(request, response, entry.user, entry.secret, identity)

    def _begin(
        self, request: web.Request, response: web.Response, user: str | None, secret: str | None, identity: Identity
    ) -> web.Response:
        self.sessions.end(_session_id(request))
        session_id = self.sessions.begin(user, secret, identity)
        response.set_cookie(
            _cookie_name(request), session_id, path="/", httponly=True, samesite="Strict", secure=request.secure
        )
        log.info("console login", user=user, peer=_peer(request))
        return response

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        self.sessions.end(_session_id(request))
        response = web.Response(status=HTTPStatus.NO_CONTENT)
        response.del_cookie(_cookie_name(request), path="/", httponly=True, samesite="Strict", secure=request.secure)
        return response

    def _after(self, failure: CallFailed, request: web.Request) -> None:
        """End the session if its secret is no longer valid; ask again for logins: a restart may have brought them."""
        if failure.code == UNAUTHENTICATED and failure.status is None:
            self.sessions.end(_session_id(request))
            self._needs_login = self._needs_login or None

    # -- calls

    async def _opened(self, request: web.Request) -> tuple[Session, OpenCall]:
        """Open the call that the request names. Raises CallFailed."""
        session = await self._require_session(request)
        body = await _body(request)
        if session is self._nobodys:
            self.connections.known(request.protocol, self._address(request))
        return session, self._port.open_call(_method(request), body, _caller(session, request), _members(request))

    def _address(self, request: web.Request) -> str:
        return self.connections.address_of(request.protocol)

    async def _call(self, request: web.Request) -> web.StreamResponse:
        _, call = await self._opened(request)
        try:
            answer = await self.threads.run(lambda: whole(call), call.cancel)
        except CallFailed as failure:
            self._after(failure, request)
            raise
        return _json_response(answer)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        session, call = await self._opened(request)
        with self.threads.stream(0 if session is self._nobodys else len(session.on_end)):
            session.on_end.add(call.cancel)
            try:
                response = web.StreamResponse(headers=STREAM_HEADERS)
                await response.prepare(request)
                await self._write_answers(call, response, request)
            finally:
                session.on_end.discard(call.cancel)
                call.cancel()
        return response

    async def _write_answers(self, call: OpenCall, response: web.StreamResponse, request: web.Request) -> None:
        """Write one answer per line, as they come. The status is sent already: a failure becomes the last line."""
        try:
            while (answer := await self.threads.next_of(call)) is not None:
                await _write_line(response, answer)
            return
        except CallFailed as error:
            failed = error.code, error.message
            self._after(error, request)
        except (ConnectionError, TimeoutError):
            raise
        except Exception:
            log.exception("the console failed", method=request.method, path=request.path)
            failed = FAULT
        await _write_line(response, json.dumps({"error": _error_fields(*failed)}).encode())

    # -- files

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return self._file(request, INDEX, is_immutable=False)

    async def _static(self, request: web.Request) -> web.StreamResponse:
        # a page of another version, from before an upgrade or from another member, gets this version's file, and may
        # not keep it
        is_ours = request.match_info["digest"] == self._files.digest
        return self._file(request, request.match_info["path"], is_immutable=is_ours)

    def _file(self, request: web.Request, path: str, *, is_immutable: bool) -> web.Response:
        file = self._files.by_path.get(path)
        if file is None:
            raise CallFailed("NOT_FOUND", "no such file")
        is_zipped = file.zipped is not None and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        etag = f"{file.etag}-gzip" if is_zipped else file.etag
        caching = IMMUTABLE if is_immutable else "no-cache"
        headers = {hdrs.CACHE_CONTROL: caching, hdrs.ETAG: f'"{etag}"', hdrs.VARY: hdrs.ACCEPT_ENCODING}
        if any(each.value in {etag, "*"} for each in request.if_none_match or ()):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        headers[hdrs.CONTENT_TYPE] = file.content_type
        if is_zipped:
            headers[hdrs.CONTENT_ENCODING] = "gzip"
        return web.Response(body=file.zipped if is_zipped else file.plain, headers=headers)


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


async def _body(request: web.Request) -> bytes:
    """Read the body of the request. Raises CallFailed."""
    try:
        async with asyncio.timeout(READ_S):
            return await request.read()
    except TimeoutError:
        raise CallFailed(
            "DEADLINE_EXCEEDED", "the request did not arrive in time", status=HTTPStatus.REQUEST_TIMEOUT
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise CallFailed("OUT_OF_RANGE", f"the request is larger than {REQUEST_SIZE_MAX >> 20} MiB") from None


async def _write_line(response: web.StreamResponse, line: bytes) -> None:
    async with asyncio.timeout(WRITE_S):
        await response.write(line + b"\n")


def _credentials(body: bytes) -> tuple[str, str]:
    """Read user and secret from JSON. Raises CallFailed."""
    try:
        fields: Any = json.loads(body)
        user, secret = fields["user"], fields["secret"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise CallFailed("INVALID_ARGUMENT", "user, secret: must be given, as JSON") from None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise CallFailed("INVALID_ARGUMENT", "user, secret: must be text")
    if not USER_NAME.fullmatch(user) or not SECRET_TEXT.fullmatch(secret):
        # the name goes into a header, where other characters would name another user
        raise CallFailed(UNAUTHENTICATED, "no enabled user has this name and this secret")
    return user, secret


def _method(request: web.Request) -> str:
    return f"{request.match_info['service']}/{request.match_info['method']}"


def _members(request: web.Request) -> list[str] | None:
    """Return the member that the call is for, [] for all of the cluster, None for the broker itself."""
    if MEMBER in request.query:
        return [request.query[MEMBER]]
    return [] if ALL_MEMBERS in request.query else None


def _caller(session: Session, request: web.Request) -> Caller:
    return Caller(session.user, session.secret, _peer(request))


def _peer(request: web.Request) -> str:
    """Return the browser's `ip:port`, IPv6 in brackets; headers of proxies are not trusted."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    if not peer:
        return ""
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _cookie_name(request: web.Request) -> str:
    """Return a name with the port in it: browsers tell cookies apart by host alone, and a machine may run two consoles.

    With the prefix `__Host-`, which needs TLS, no other host of the domain can set the cookie.
    """
    port = port_of(request.headers.get(hdrs.HOST, "")) or ("443" if request.secure else "80")
    return f"__Host-quarry_{port}" if request.secure else f"quarry_{port}"


def _session_id(request: web.Request) -> str | None:
    return request.cookies.get(_cookie_name(request))


def _idle_s(request: web.Request) -> float:
    """Return the seconds since the user acted on the page; 0 if the header holds no number, as from programs."""
    text = request.headers.get(IDLE, "")
    return float(text) if text.isascii() and text.isdecimal() and len(text) <= IDLE_DIGITS_MAX else 0


def _json_response(text: bytes, status: int = HTTPStatus.OK) -> web.Response:
    return web.Response(body=text, status=status, content_type=JSON, headers={hdrs.CACHE_CONTROL: "no-store"})


def _refusal(status: int, code: str, message: str) -> web.Response:
    return _json_response(json.dumps(_error_fields(code, message)).encode(), status)


def _error_fields(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
