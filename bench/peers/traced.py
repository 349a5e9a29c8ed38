"""`python -m bench.peers.traced FILE native|python ARGUMENT ...` runs `quarry` and records the modules that it passes.

On SIGUSR1, and at its end, it writes to FILE what was called since the time before, as JSON. With `python` it runs
without the native part.
"""

from __future__ import annotations

import atexit
import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Final

import quarry_mq

ROOT: Final = str(Path(quarry_mq.__file__).parent) + "/"
GENERATED: Final = "protocol/proto/"
IMPORT: Final = "<module>"


class Tracer:
    """Notes each call of a function of ours, and each import of a module of ours, on all threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._calls: list[str] = []
        self._imports: set[str] = set()

    def begin(self) -> None:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        signal.signal(signal.SIGUSR1, lambda *_: self.write())
        atexit.register(self.write)

    def write(self) -> None:
        calls, self._calls = self._calls, []
        scratch = self._path.with_suffix(".new")
        scratch.write_text(json.dumps({"calls": calls, "imports": sorted(self._imports)}))
        scratch.rename(self._path)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (module := module_of(frame)) is None:
            return
        if frame.f_code.co_name == IMPORT:
            self._imports.add(module)
        elif not is_importing(frame):
            self._calls.append(module)


def module_of(frame: FrameType) -> str | None:
    """Return the name of the module below `quarry_mq`; None for other code, and for generated code."""
    path = frame.f_code.co_filename
    if not path.startswith(ROOT) or GENERATED in path:
        return None
    return path.removeprefix(ROOT).removesuffix(".py").replace("/", ".")


def is_importing(frame: FrameType | None) -> bool:
    """Return whether the call was made by the body of a module of ours, while that was imported."""
    while frame is not None:
        if frame.f_code.co_name == IMPORT and module_of(frame) is not None:
            return True
        frame = frame.f_back
    return False


def run() -> None:
    path, part = Path(sys.argv.pop(1)), sys.argv.pop(1)
    if part == "python":
        sys.modules["quarry_native"] = None  # type: ignore[assignment] # an import of it fails
    tracer = Tracer(path)
    tracer.begin()
    from quarry_mq.cli.main import main

    main()


if __name__ == "__main__":
    run()
