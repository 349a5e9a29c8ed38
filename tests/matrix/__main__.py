"""Plays every feature with every official client and prints the matrix: `make test-clients`.

With names of languages only those are played; `--write` puts the matrix into docs/clients, `--rocketmq` adds columns of
Apache RocketMQ in the place of Quarry.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.languages import LANGUAGES
from tests.matrix.features import FEATURES
from tests.matrix.stages import Outcome, Stages, open_rocketmq_stages, open_stages

PAGE: Final = Path(__file__).parents[2] / "docs" / "clients" / "README.md"
BEGIN: Final = "<!-- made by `make test-clients`: begin -->\n"
END: Final = "<!-- made by `make test-clients`: end -->\n"
NOT_IN_THE_CLIENT: Final = "-"
TRANSPORTS: Final = ("plain", "TLS")
Row = tuple[str, Sequence[str]]


def main() -> int:
    """The exit status: 0 when nothing failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("languages", nargs="*", choices=[[], *LANGUAGES], help="all unless given")
    parser.add_argument("--rocketmq", action="store_true", help="play all of it on Apache RocketMQ, too, without TLS")
    parser.add_argument("--write", action="store_true", help="put the matrix of all languages into docs/clients")
    options = parser.parse_args()
    rows: list[Row] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder, open_stages(Path(folder)) as stages:
        rows.extend(_row(name, stages, notes) for name in options.languages or LANGUAGES)
        if options.rocketmq:
            languages = options.languages or list(LANGUAGES)
            with open_rocketmq_stages(Path(folder) / "peer", languages) as peer:
                rows.extend(_row(name, peer, notes, "RocketMQ", transports=("plain",)) for name in languages)
    table = markdown(rows)
    sys.stdout.write(table + "".join(f"{note}\n" for note in notes))
    if options.write and not (options.languages or options.rocketmq):
        write(table)
    return int(any("fails" in cell for _, cells in rows for cell in cells))


def _row(name: str, stages: Stages, notes: list[str], server: str = "", transports: Sequence[str] = TRANSPORTS) -> Row:
    title = f"{name}, {server}" if server else name
    try:
        language = LANGUAGES[name]()
    except pytest.skip.Exception as reason:
        notes.append(f"{title}: {reason.msg}")
        return title, ["not installed"] * len(FEATURES)
    cells = []
    for feature in FEATURES:
        outcomes: list[Outcome] = []
        for transport in transports:
            if all(each.works for each in outcomes):
                outcomes.append(stages.outcome(feature, language, tls=transport == "TLS"))
                if not outcomes[-1].works:
                    notes.append(f"{title}, {feature}, {transport}: {outcomes[-1].detail}")
        cells.append(cell(outcomes))
        print(f"{title}: {feature}: {cells[-1]}", file=sys.stderr)
    return title, cells


def cell(outcomes: Sequence[Outcome]) -> str:
    """Return the cell for the outcomes without and with TLS."""
    if outcomes[0].works is None:
        return NOT_IN_THE_CLIENT
    return "yes" if all(outcome.works for outcome in outcomes) else "**fails**"


def markdown(rows: Sequence[Row]) -> str:
    """A row per feature, a column per client."""
    lines = ["| | " + " | ".join(name for name, _ in rows) + " |", "|---" * (len(rows) + 1) + "|"]
    for number, feature in enumerate(FEATURES):
        lines.append(f"| {feature} | " + " | ".join(cells[number] for _, cells in rows) + " |")
    return "\n".join(lines) + "\n"


def write(table: str) -> None:
    """Put the table between the marks in docs/clients. Raises ValueError when they are not there."""
    text = PAGE.read_text()
    before, found_begin, rest = text.partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found_begin or not found_end:
        raise ValueError(f"{PAGE}: the marks of the matrix are missing")
    PAGE.write_text(before + BEGIN + "\n" + table + "\n" + END + after)


if __name__ == "__main__":
    raise SystemExit(main())
