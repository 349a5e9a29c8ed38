"""The server of the interoperability tests: `python -m tests.interop.server h2 [certificate key]`.

Prints `{"target": "127.0.0.1:port"}` when it listens, and ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import cast

import uvloop

from quarry_mq.server.front import Front, FrontKind, LiveTls, TlsFiles, make_front
from quarry_mq.server.front.h2 import H2Front
from tests.interop.service import InteropService


async def serve(kind: FrontKind, tls: LiveTls | None) -> None:
    front: Front

    def bytes_received() -> int | None:
        return front.stats.bytes_received if isinstance(front, H2Front) else None

    front = make_front(kind, InteropService(bytes_received).methods())
    print(json.dumps({"target": await front.start("127.0.0.1:0", tls=tls)}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await front.stop(0)


def main() -> None:
    kind, *files = sys.argv[1:]
    tls = LiveTls(TlsFiles(Path(files[0]), Path(files[1]))) if files else None
    uvloop.run(serve(cast(FrontKind, kind), tls))


if __name__ == "__main__":
    main()
