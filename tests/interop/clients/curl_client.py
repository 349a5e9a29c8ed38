"""curl, which knows HTTP/2 but no gRPC: `python -m tests.interop.clients.curl_client target [ca]`.

All transfers of a case are one run of curl and share its connections.
"""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from threading import Timer
from typing import IO, Any, Final
from urllib.parse import unquote

from tests.interop.clients.reporting import (
    LARGE_HEADER_SIZE,
    LARGE_SIZE,
    PATIENCE_S,
    PREFIX,
    REFUSAL,
    CannotTry,
    compressible,
    report,
)

MESSAGE_PREFIX: Final = Struct(">BI")
OK, INVALID_ARGUMENT, DEADLINE_EXCEEDED, UNIMPLEMENTED = 0, 3, 4, 12
FIRST_VERSION_THAT_REUSES: Final = 8
"""Before, a second transfer on a connection of prior knowledge failed now and again: curl#10634."""

HEADERS: Final = {"content-type": "application/grpc", "te": "trailers", "expect": ""}


@dataclass(frozen=True, slots=True)
class Request:
    """Without a body nothing is sent behind the headers."""

    method: str
    body: bytes | None = b""
    headers: Mapping[str, str] | None = None
    compressed: bool = False

    def message(self) -> bytes:
        if self.body is None:
            return b""
        return framed(gzip.compress(self.body), flag=1) if self.compressed else framed(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    """`connects`: connections that this transfer had to open."""

    messages: Sequence[bytes]
    status: int
    text: str
    connects: int


def curl_version() -> int:
    """The major number."""
    said = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"curl (\d+)", said)
    assert found is not None, said
    return int(found[1])


def framed(body: bytes, flag: int = 0) -> bytes:
    return MESSAGE_PREFIX.pack(flag, len(body)) + body


def messages_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        flag, size = MESSAGE_PREFIX.unpack_from(data)
        end = MESSAGE_PREFIX.size + size
        assert flag == 0
        assert len(data) >= end, "a message was cut"
        found.append(data[MESSAGE_PREFIX.size : end])
        data = data[end:]
    return found


class Client:
    def __init__(self, target: str, ca: str | None) -> None:
        self._url = f"{'https' if ca else 'http'}://{target}{PREFIX}"
        self._connection = ["http2", f'cacert = "{ca}"'] if ca else ["http2-prior-knowledge"]
        self._reuses_connections = ca is not None or curl_version() >= FIRST_VERSION_THAT_REUSES

    def _settings(self, method: str, headers: Mapping[str, str]) -> list[str]:
        """One transfer in curl's own words for its configuration file."""
        lines = [f'header = "{name}: {value}"' for name, value in {**HEADERS, **headers}.items()]
        return [f'url = "{self._url}{method}"', *self._connection, *lines, "silent", "show-error"]

    def transfer(self, requests: Sequence[Request], *options: str) -> list[Answer]:
        """All in one run of curl."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            lines = list(options)
            for number, request in enumerate(requests):
                (folder / f"{number}.in").write_bytes(request.message())
                lines += self._settings(request.method, request.headers or {})
                lines += [f'data-binary = "@{folder}/{number}.in"', f'output = "{folder}/{number}.out"']
                lines += [f'dump-header = "{folder}/{number}.head"', f"max-time = {PATIENCE_S}"]
                lines += [f'write-out = "{number} %{{num_connects}}\\n"', "next"]
            done = subprocess.run(
                ["curl", "--config", "-"], input="\n".join(lines[:-1]), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"curl ended with {done.returncode}: {done.stderr[-400:]}"
            connects = dict(line.split() for line in done.stdout.splitlines())
            return [_answer(folder, number, int(connects[str(number)])) for number in range(len(requests))]

    def call(self, method: str, body: bytes | None = b"", **options: Any) -> Answer:
        return self.transfer([Request(method, body, **options)])[0]

    def equal(self, method: str, size: int, **options: Any) -> str:
        body = compressible(size)
        answer = self.call(method, body, **options)
        assert answer.status == OK, answer
        assert answer.messages == [body]
        return f"{size} bytes"

    def await_end(self, name: bytes) -> None:
        assert self.call("Ended", name).messages == [b"ended"]

    # -- the cases

    def server_stream(self) -> str:
        answer = self.call("Stream")
        assert answer.messages == [b"%d" % number for number in range(100)]
        assert answer.status == OK, answer
        return f"{len(answer.messages)} messages"

    @contextmanager
    def streaming(self, method: str, first: bytes) -> Iterator[tuple[IO[bytes], IO[bytes], subprocess.Popen[bytes]]]:
        """A run of curl that sends what it is given and shows what comes at once: its input, output and process.

        Its own `max-time` would make it wait for input without looking at what comes in.
        """
        lines = [*self._settings(method, {}), 'request = "POST"', 'upload-file = "."', "no-buffer"]
        with tempfile.NamedTemporaryFile("w", suffix=".curl") as settings:
            settings.write("\n".join(lines))
            settings.flush()
            command = ["curl", "--config", settings.name]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
            ) as curl:
                assert curl.stdin is not None
                assert curl.stdout is not None
                impatience = Timer(PATIENCE_S, curl.kill)
                impatience.start()
                try:
                    curl.stdin.write(framed(first))
                    yield curl.stdin, curl.stdout, curl
                finally:
                    impatience.cancel()
                    curl.kill()

    def bidi(self) -> str:
        with self.streaming("PingPong", b"0") as (pings, answers, curl):
            for number in range(20):
                if number:
                    pings.write(framed(b"%d" % number))
                pong = framed(b"%d" % number)
                assert answers.read(len(pong)) == pong
            pings.close()
            assert messages_of(answers.read()) == [b"end"]
            assert curl.wait() == 0
        return "20 pings"

    def early_end(self) -> str:
        raise CannotTry("curl goes on until its own side is done, whatever the server says")

    def cancel(self) -> str:
        name = uuid.uuid4().bytes
        with self.streaming("Park", name) as (pings, answers, _):
            pings.close()
            parked = framed(b"parked")
            assert answers.read(len(parked)) == parked
        self.await_end(name)
        return "the server saw the connection close"

    def deadline(self) -> str:
        name = uuid.uuid4().bytes
        started_s = time.monotonic()
        answer = self.call("Silent", name, headers={"grpc-timeout": "300m"})
        took_s = time.monotonic() - started_s
        assert answer.status == DEADLINE_EXCEEDED, answer
        assert 0.25 < took_s < PATIENCE_S, took_s
        self.await_end(name)
        return f"{took_s * 1000:.0f} ms, by the server"

    def metadata(self) -> str:
        answer = self.call("Metadata", b"x-interop", headers={"x-interop": "value 1", "x-interop-bin": "AAEC/w"})
        assert answer.messages == [b"value 1"], answer
        return ""

    def large_header(self) -> str:
        value = "x" * LARGE_HEADER_SIZE
        assert self.call("Metadata", b"x-large", headers={"x-large": value}).messages == [value.encode()]
        return f"{len(value)} bytes"

    def gzip(self) -> str:
        return self.equal("Compressed", 1_000_000, headers={"grpc-encoding": "gzip"}, compressed=True)

    def unknown(self) -> str:
        # with a body some versions fail when the answer, and a reset behind it, come before they have sent it
        answer = self.call("Unknown", None)
        assert answer.status == UNIMPLEMENTED, answer
        return answer.text

    def error(self) -> str:
        answer = self.call("Refuse")
        assert (answer.status, answer.text) == (INVALID_ARGUMENT, REFUSAL), answer
        return answer.text

    def many(self) -> str:
        if not self._reuses_connections:
            raise CannotTry("this curl cannot use such a connection twice (curl#10634)")
        bodies = [b"%d" % number for number in range(1000)]
        answers = self.transfer([Request("Echo", body) for body in bodies])
        assert [answer.messages for answer in answers] == [[body] for body in bodies]
        assert sum(answer.connects for answer in answers) == 1, "not on one connection"
        return "1000 calls"

    def concurrent(self) -> str:
        bodies = [b"%d" % number for number in range(100)]
        options = ["parallel", "parallel-max = 100"]
        if not self._reuses_connections:
            options.append("parallel-immediate")
        answers = self.transfer([Request("Together", body) for body in bodies], *options)
        assert [answer.messages for answer in answers] == [[body] for body in bodies]
        return f"100 calls on {sum(answer.connects for answer in answers)} connections"


def _answer(folder: Path, number: int, connects: int) -> Answer:
    head = (folder / f"{number}.head").read_text()
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    output = folder / f"{number}.out"
    assert head.startswith("HTTP/2 200"), head
    assert fields["content-type"].startswith("application/grpc"), head
    body = output.read_bytes() if output.exists() else b""
    return Answer(messages_of(body), int(fields["grpc-status"]), unquote(fields.get("grpc-message", "")), connects)


def main() -> None:
    target, *files = sys.argv[1:]
    client = Client(target, files[0] if files else None)
    cases: dict[str, Callable[[], str]] = {
        "unary": lambda: client.equal("Echo", 1000),
        "empty": lambda: client.equal("Echo", 0),
        "server stream": client.server_stream,
        "bidi": client.bidi,
        "early end": client.early_end,
        "cancel": client.cancel,
        "deadline": client.deadline,
        "4 MiB": lambda: client.equal("Echo", LARGE_SIZE),
        "metadata": client.metadata,
        "large header": client.large_header,
        "gzip": client.gzip,
        "unknown": client.unknown,
        "error": client.error,
        "1000 calls": client.many,
        "100 at once": client.concurrent,
    }
    for name, case in cases.items():
        report(name, case)


if __name__ == "__main__":
    main()
