"""Plays pages and puts what came into them: `python -m tests.documents docs/backup.md`. Read it before you keep it.

Output that still matches stays as it is, wildcards included.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quarry_mq.server.process.banner import READY_LINE
from tests.documents.outputs import ANYTHING, Bindings, matches
from tests.documents.pages import Command
from tests.documents.playing import PageWrong, play
from tests.documents.session import Session
from tests.documents.table import prepared, yours


def main(pages: Sequence[str]) -> int:
    for page in map(Path, pages):
        path = page.resolve()
        with tempfile.TemporaryDirectory() as folder, Session(Path(folder) / "page") as session:
            prepared(path, session.folder)
            outputs: list[tuple[Command, Sequence[str]]] = []

            def record(command: Command, output: Sequence[str], to: list[Any] = outputs) -> None:
                to.append((command, _kept(command, output)))

            try:
                play(path, session, yours=yours(path, session.folder), record=record)
            except PageWrong as wrong:
                print(wrong)
            _write(path, outputs)
    return 0


def _kept(command: Command, output: Sequence[str]) -> Sequence[str]:
    """Return the output that is written into the page: of a broker where it is alone."""
    if matches(command.output, output, Bindings()):
        return command.output
    if READY_LINE in output:
        ready = output.index(READY_LINE)
        return [*([ANYTHING] if ready else []), *output[ready : output.index("", ready)], ANYTHING]
    return output


def _write(page: Path, outputs: Sequence[tuple[Command, Sequence[str]]]) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    for command, output in reversed(outputs):
        begin = command.line - 1 + len(command.typed.split("\n"))
        indent = lines[command.line - 1][: -len(lines[command.line - 1].lstrip())]
        lines[begin : begin + len(command.output)] = [f"{indent}{line}".rstrip() for line in output]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
