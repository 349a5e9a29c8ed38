"""The common part of the client programs in Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

PREFIX: Final = "/interop.Service/"
REFUSAL: Final = "größer als 100 %: 大"
PATIENCE_S: Final = 20.0
LARGE_SIZE: Final = 4 * 1024 * 1024
LARGE_HEADER_SIZE: Final = 15_000


def compressible(size: int) -> bytes:
    """Return bytes that gzip makes some eight times smaller: a broker takes no message that grows 32 times or more."""
    runs = ((number * number * 2_654_435_761 & 0xFFFF_FFFF) >> 24 for number in range(size // 16 + 1))
    return b"".join(bytes([value]) * 16 for value in runs)[:size]


class CannotTry(Exception):
    """The client is not able to do what the case asks for."""


def report(name: str, case: Callable[[], str]) -> None:
    """Run one case and print its line."""
    ok: bool | None
    try:
        ok, detail = True, case()
    except CannotTry as reason:
        ok, detail = None, str(reason)
    except Exception as error:
        ok, detail = False, f"{type(error).__name__}: {error}"
    print(json.dumps({"case": name, "ok": ok, "detail": detail}), flush=True)
