"""One row of the matrix: one client program against one server of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

from quarry_mq.server.front import FrontKind

ROOT: Final = Path(__file__).parents[2]
CLIENT_TIMEOUT_S: Final = 180.0
END_TIMEOUT_S: Final = 10.0

SERVER: Final = "server"
"""The last outcome: the server ended in good order and had nothing to complain about."""

CASES: Final = (
    "unary",
    "empty",
    "server stream",
    "bidi",
    "early end",
    "cancel",
    "deadline",
    "4 MiB",
    "metadata",
    "large header",
    "gzip",
    "unknown",
    "error",
    "1000 calls",
    "100 at once",
    SERVER,
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`ok` is None when the client is not able to try the case."""

    case: str
    ok: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of an authority and of a server at 127.0.0.1 that it vouches for."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        authority = trustme.CA()
        server = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(made.ca)
        server.private_key_pem.write_to_path(made.key)
        made.certificate.write_bytes(b"".join(each.bytes() for each in server.cert_chain_pems))
        return made


def outcomes_of(command: Sequence[str], front: FrontKind, certificates: Certificates | None) -> list[Outcome]:
    """What the client program saw, one outcome per case and one of the server. With certificates over TLS."""
    files = [] if certificates is None else [str(certificates.certificate), str(certificates.key)]
    trusted = [] if certificates is None else [str(certificates.ca)]
    with _serving(front, files) as (server, target):
        try:
            client = subprocess.run(
                [*command, target, *trusted],
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=CLIENT_TIMEOUT_S,
                check=False,
            )
            said, problem = client.stdout, f"ended with {client.returncode}: {client.stderr[-1000:]}"
        except subprocess.TimeoutExpired as late:
            said, problem = bytes(late.stdout or b"").decode(), f"no end within {CLIENT_TIMEOUT_S} s"
        lines = [json.loads(line) for line in said.splitlines() if line.endswith("}")]
        seen = {line["case"]: Outcome(line["case"], line["ok"], line["detail"]) for line in lines}
        found = [seen.get(case) or Outcome(case, False, problem) for case in CASES if case != SERVER]
        complaints, _ = server.communicate(timeout=END_TIMEOUT_S)
    quiet = server.returncode == 0 and not complaints
    return [*found, Outcome(SERVER, quiet, "" if quiet else f"ended with {server.returncode}: {complaints[-1000:]}")]


@contextmanager
def _serving(front: FrontKind, files: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running server, and where it listens. It ends when its input does."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.interop.server", front, *files],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            first = server.stdout.readline()
            assert "target" in first, f"the server did not start: {first}{server.stdout.read()}"
            yield server, json.loads(first)["target"]
        finally:
            server.kill()
