"""Write the shards' lines and the supervisor's own text to its standard output and error."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import FileIO
from typing import Final, TextIO

from quarry_mq.server.shards.launch import Child

COLUMNS: Final = {
    "messaging": "QUARRY_NETWORK_LISTEN",
    "admin": "QUARRY_NETWORK_ADMIN",
    "http": "QUARRY_NETWORK_HTTP",
    "console": "QUARRY_NETWORK_CONSOLE",
    "store": "QUARRY_STORE_DIRECTORY",
}


class Output:
    """Write to standard output or error, unbuffered. Errors are ignored: a reader that is gone must stop nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._file = FileIO(stream.fileno(), "w", closefd=False)

    def line(self, text: bytes | str) -> None:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        rest = memoryview(data + b"\n")
        with suppress(OSError):
            while rest:
                rest = rest[self._file.write(rest) :]


def ready_text(children: Sequence[Child]) -> str:
    """Return the text printed when all shards are ready, with the addresses of each."""
    rows = [("", *COLUMNS)]
    rows += [(child.name, *(child.variables[variable] for variable in COLUMNS.values())) for child in children]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    shards = "1 shard is" if len(children) == 1 else f"{len(children)} shards are"
    return "\n  ".join([f"{shards} ready.", *lines])
