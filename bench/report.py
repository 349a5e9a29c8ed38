"""Shows results: one JSON line per benchmark for programs, a table for people."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from bench.harness import Case, Options
from quarry_mq.store.native import NATIVE

Line = dict[str, Any]

TABLE_WIDTH: Final = 150
"""Width of the table if no terminal gives one."""


def line_of(name: str, question: str, options: Options) -> Line:
    """Return the head of every line: benchmark, time, machine and seed."""
    return {
        "bench": name,
        "question": question,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "scale": options.scale.value,
        "seed": options.seed,
        "machine": machine(options.scratch),
    }


def machine(scratch: Path) -> Mapping[str, object]:
    """Return the facts about the machine that results depend on.

    `load_1m` above 0.5 or so: the machine was not quiet.
    """
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": _filesystem(scratch.resolve()),
        "native": NATIVE is not None,
        "load_1m": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"model name", "Model"}:
            return value.strip()
    return platform.machine()


def _filesystem(path: Path) -> str:
    """Return the type of the file system that holds `path`: that of the deepest mount point above it."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, mount_kind, *_ = line.split()
        if path.is_relative_to(mount) and len(mount) > len(best):
            best, kind = mount, mount_kind
    return kind


def with_cases(line: Line, cases: Sequence[Case]) -> Line:
    return {**line, "cases": [case.facts() for case in cases]}


def keep(line: Line, results: Path) -> None:
    """Add the line to the history of its benchmark."""
    results.mkdir(parents=True, exist_ok=True)
    with (results / f"{line['bench']}.jsonl").open("a") as history:
        history.write(json.dumps(line) + "\n")


def show(lines: Sequence[Line]) -> None:
    """Print a table of all cases on standard error."""
    console = Console(stderr=True, width=None if sys.stderr.isatty() else TABLE_WIDTH)
    table = Table(title="ratio: our rate as a multiple of the peer's")
    for heading in ("benchmark", "case", "rate/s", "CPU µs each", "ratio", "peer"):
        table.add_column(heading, justify="left" if heading in {"benchmark", "case", "peer"} else "right")
    for line in lines:
        for case in line.get("cases", ()):
            table.add_row(
                line["bench"],
                case["case"],
                f"{case['per_second']:,.0f} {case['unit']}",
                f"{case['cpu_us']:.1f} / {case['peer_cpu_us']:.1f}",
                f"{case['ratio']:.3g}",
                case["peer"],
            )
        for ending in ("skipped", "failed"):
            if ending in line:
                table.add_row(line["bench"], f"{ending}: {line[ending].splitlines()[0]}", "", "", "", "")
    console.print(table)
