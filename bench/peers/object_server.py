"""An S3-like object store for one machine: objects are files of a folder. Requests are not authenticated.

It has the requests that `store.index.tiered.object_store.cloud` makes: PUT of an object and of parts of one, GET of all
and of a range, HEAD, DELETE. `python -m bench.peers.object_server FOLDER DELAY_MS` serves until it is ended; its first
line of output is its address. To simulate a distant store, every read is answered DELAY_MS late.
"""

from __future__ import annotations

import asyncio
import re
import select
import subprocess
import sys
from contextlib import suppress
from hashlib import md5
from http import HTTPStatus
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import uvloop

BUCKET: Final = "bench"
PREFIX: Final = "index"
START_TIMEOUT_S: Final = 60.0
BODY_SIZE_MAX: Final = 1 << 30
PROJECT: Final = Path(__file__).parents[2]
RANGE: Final = re.compile(r"bytes=(\d+)-(\d+)")
MODIFIED: Final = "Wed, 01 Jan 2025 00:00:00 GMT"
OPTIONS: Final = {"region": "us-east-1", "access_key_id": "bench", "secret_access_key": "bench"}
"""Options that a client has to give; any values will do."""


class ObjectServer:
    """The program below in its own process, on a free loopback port. Raises RuntimeError when it does not start."""

    def __init__(self, folder: Path, *, delay_ms: float = 0.0) -> None:
        """Start the server. Files of the folder are its objects; two servers may serve the same folder."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.peers.object_server", str(folder), str(delay_ms)],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            text=True,
        )
        output = self._process.stdout
        assert output is not None
        says_something, _, _ = select.select([output], [], [], START_TIMEOUT_S)
        self.address = output.readline().strip() if says_something else ""
        """Host and port."""
        if not self.address:
            self.close()
            raise RuntimeError("the object server did not start")

    @property
    def url(self) -> str:
        """The address in the form that `CloudObjects.at` takes."""
        return f"s3://{BUCKET}/{PREFIX}"

    @property
    def options(self) -> dict[str, str]:
        return {**OPTIONS, "endpoint": f"http://{self.address}"}

    def path_of(self, name: str) -> str:
        """Return the path of an object in requests."""
        return f"/{BUCKET}/{PREFIX}/{name}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


# -- the program


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


class Response(NamedTuple):
    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    size: int | None = None
    """Size of the body if it is not sent."""


NOT_FOUND: Final = Response(HTTPStatus.NOT_FOUND, b"<Error><Code>NoSuchKey</Code></Error>")


class Objects:
    """The objects. A name may have slashes: it is a path below the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads: dict[str, dict[int, bytes]] = {}

    def answer(self, request: Request) -> Response:
        path = self._folder / request.path.lstrip("/")
        if not path.resolve().is_relative_to(self._folder.resolve()):
            return Response(HTTPStatus.FORBIDDEN)
        match request.method:
            case "GET" | "HEAD":
                return _read(path, request)
            case "PUT" if "uploadId" in request.query:
                upload, number = request.query["uploadId"][0], int(request.query["partNumber"][0])
                self._uploads[upload][number] = request.body
                return Response(HTTPStatus.OK, headers=(_etag(request.body),))
            case "PUT":
                return _write(path, request.body)
            case "POST":
                return self._post(path, request)
            case "DELETE" if "uploadId" in request.query:
                self._uploads.pop(request.query["uploadId"][0], None)
                return Response(HTTPStatus.NO_CONTENT)
            case "DELETE":
                path.unlink(missing_ok=True)
                return Response(HTTPStatus.NO_CONTENT)
            case _:
                return Response(HTTPStatus.METHOD_NOT_ALLOWED)

    def _post(self, path: Path, request: Request) -> Response:
        if "uploads" in request.query:
            upload = str(len(self._uploads) + 1)
            self._uploads[upload] = {}
            return _told("InitiateMultipartUploadResult", f"<UploadId>{upload}</UploadId>")
        if "uploadId" in request.query:
            parts = self._uploads.pop(request.query["uploadId"][0])
            [(_, etag)] = _write(path, b"".join(parts[number] for number in sorted(parts))).headers
            return _told("CompleteMultipartUploadResult", f"<ETag>{etag}</ETag>")
        if "delete" in request.query:
            names = [unquote(name) for name in re.findall(r"<Key>(.*?)</Key>", request.body.decode())]
            for name in names:
                (path / name).unlink(missing_ok=True)
            return _told("DeleteResult", "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names))
        return Response(HTTPStatus.BAD_REQUEST)


def _told(name: str, fields: str) -> Response:
    return Response(HTTPStatus.OK, f'<?xml version="1.0" encoding="UTF-8"?><{name}>{fields}</{name}>'.encode())


def _etag(content: bytes) -> tuple[str, str]:
    return "ETag", f'"{md5(content, usedforsecurity=False).hexdigest()}"'


def _write(path: Path, content: bytes) -> Response:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return Response(HTTPStatus.OK, headers=(_etag(content),))


def _read(path: Path, request: Request) -> Response:
    if not path.is_file():
        return NOT_FOUND
    size = path.stat().st_size
    facts = (("ETag", f'"{size:x}"'), ("Last-Modified", MODIFIED), ("Accept-Ranges", "bytes"))
    if request.method == "HEAD":
        return Response(HTTPStatus.OK, headers=facts, size=size)
    asked = RANGE.fullmatch(request.headers.get("range", ""))
    with path.open("rb") as file:
        if asked is None:
            return Response(HTTPStatus.OK, file.read(), facts)
        begin, last = int(asked[1]), min(int(asked[2]), size - 1)
        file.seek(begin)
        content = file.read(last - begin + 1)
    return Response(HTTPStatus.PARTIAL_CONTENT, content, (*facts, ("Content-Range", f"bytes {begin}-{last}/{size}")))


async def _next_request(reader: asyncio.StreamReader) -> Request | None:
    """Read the next request; None when the client has closed the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        if size > BODY_SIZE_MAX:
            return None
        body = await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    method, target, _ = first.split(" ")
    parts = urlsplit(target)
    return Request(method, unquote(parts.path), parse_qs(parts.query, keep_blank_values=True), headers, body)


def _packed(response: Response) -> bytes:
    size = len(response.body) if response.size is None else response.size
    lines = [f"HTTP/1.1 {response.status} {response.status.phrase}", f"Content-Length: {size}"]
    lines += [f"{name}: {value}" for name, value in response.headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + response.body


async def _serve(folder: Path, delay_s: float) -> None:
    objects = Objects(folder)

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while (request := await _next_request(reader)) is not None:
                if delay_s and request.method == "GET":
                    await asyncio.sleep(delay_s)
                writer.write(_packed(objects.answer(request)))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    print(f"{host}:{port}", flush=True)
    await server.serve_forever()


def main() -> None:
    folder, delay_ms = Path(sys.argv[1]), float(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(folder, delay_ms / 1000))


if __name__ == "__main__":
    main()
