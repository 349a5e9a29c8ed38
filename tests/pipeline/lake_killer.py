"""Runs `quarry pipeline …`, and ends the process without a word when a step of an append is reached the second time.

The step is `METHOD` or `METHOD+`: before or after this method of `LakeTable` runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Final

from quarry_mq.cli.main import app
from quarry_mq.pipeline.lake.table import LakeTable

KILLED: Final = 99


def kill_at(step: str, time: int) -> None:
    name = step.removesuffix("+")
    method: Callable[..., Any] = getattr(LakeTable, name)
    calls = 0

    def wrapped(self: LakeTable, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < time:
            return method(self, *arguments)
        if step.endswith("+"):
            method(self, *arguments)
        os._exit(KILLED)

    setattr(LakeTable, name, wrapped)


if __name__ == "__main__":
    kill_at(sys.argv[1], int(sys.argv[2]))
    app(sys.argv[3:])
