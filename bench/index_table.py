"""`python -m bench.index_table` writes the last results of `key_index` and `key_stores` as tables to docs/key-index.md.

The text between the two marks of a table is replaced. Exit status 1 when there is no result.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.key_stores import COLD, QUESTIONS
from bench.tables import write_tables

PAGE: Final = Path(__file__).parents[1] / "docs" / "key-index.md"
KIB: Final = 1024


def key_index(line: dict[str, Any]) -> Iterator[str]:
    put, compact, upload, *found, newest, far = line["cases"]
    yield _how(line, put["items"])
    yield ""
    yield "| | keys per second | CPU | bytes per key | memory |"
    yield "|---|---:|---:|---:|---:|"
    for what, case, size in (
        ("taken in", put, put["bytes_per_item"]),
        ("compacted", compact, compact["bytes_per_item"]),
        ("uploaded and read back", upload, compact["bytes_per_item"]),
    ):
        cpu = f"{case['cpu_us']:.2f} µs"
        yield f"| {what} | {case['per_second']:,.0f} | {cpu} | {size:.1f} | {case['peak_private_mib']:.0f} MiB |"
    yield ""
    kinds = {"id": "an id", "order": "an order", "customer": "a customer", "missing": "no such key"}
    yield f"| one file, p50 / p99 | {' | '.join(kinds.values())} | reads, bytes | from the disk |"
    yield f"|---|{'---:|' * (len(kinds) + 2)}"
    for case in found:
        cells = [_times(case["lookups"][kind]) for kind in kinds]
        cold = (
            f"{_time(case['cold_p50_us'])}, {case['cold_read_bytes'] / KIB:,.0f} KiB" if "cold_p50_us" in case else ""
        )
        reads = f"{case['reads_each']:.1f}, {case['read_bytes_each']:.0f}"
        yield f"| {case['stage']} | {' | '.join(cells)} | {reads} | {cold} |"
    cells = [_times(far["lookups"]["id"]), "", "", _times(far["lookups"]["missing in all of them"])]
    yield f"| uploaded, answers come 20 ms later; no such key: in all {newest['uploaded']} | {' | '.join(cells)} | | |"
    yield ""
    files, remote = newest["files"], newest["uploaded"]
    yield f"| all {files} files, {remote} of them uploaded | p50 / p99 | found | files looked into |"
    yield "|---|---:|---:|---:|"
    for name, facts in newest["lookups"].items():
        yield f"| {name} | {_times(facts)} | {facts['items']:,.1f} | {facts['files']:.1f} |"


def key_stores(line: dict[str, Any]) -> Iterator[str]:
    first = line["cases"][0]
    stores, uploaded = first["stores"], first["uploaded"]
    yield _how(line, first["items"])
    yield ""
    yield f"| | {' | '.join(stores)} | tiered index, uploaded |"
    yield f"|---|{'---:|' * (len(stores) + 1)}"
    rows = {
        "taken in, keys per second": lambda each: f"{each['put_per_second']:,}",
        "the same, with all work in the background": lambda each: f"{each['all_work_per_second']:,}",
        "CPU per key, with that": lambda each: f"{each['all_work_cpu_us']:.2f} µs",
        "bytes per key: lengths, allocated": lambda each: (
            f"{each['bytes_per_item']:.1f}, {each['allocated_bytes_per_item']:.1f}"
        ),
        "memory after the puts, after the lookups": lambda each: (
            f"{each['memory_mb_after_puts']:.0f}, {each['memory_mb_after_lookups']:.0f} MB"
        ),
    }
    for name, cell in rows.items():
        yield f"| {name} | {' | '.join(map(cell, stores.values()))} | |"
    for name in QUESTIONS:
        cells = [_times(each["lookups"][name]) for each in stores.values()]
        yield f"| {name}, p50 / p99 | {' | '.join(cells)} | {_times(uploaded[name])} |"
    for name in COLD:
        facts = [each["cold"][name] for each in stores.values()]
        cells = [f"{_time(each['cold_p50_us'])}, {each['cold_read_bytes'] / KIB:,.0f} KiB" for each in facts]
        yield f"| {name}, from the disk | {' | '.join(cells)} | |"
    for name, fact in (("the oldest tenth goes", "expire_s"), ("and its room is free", "give_back_s")):
        yield f"| {name} | {' | '.join(_time(each[fact] * 1e6) for each in stores.values())} | |"


def _how(line: dict[str, Any], items: int) -> str:
    machine = line["machine"]
    scale = "" if line["scale"] == "full" else f" (size `{line['scale']}`: to be replaced by a full run)"
    return (
        f"{items:,} keys{scale}, on {machine['cores']} cores ({machine['processor']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}), load average {machine['load_1m']} before the run."
    )


def _times(facts: dict[str, float]) -> str:
    return f"{_time(facts['p50_us'])} / {_time(facts['p99_us'])}"


def _time(microseconds: float) -> str:
    if microseconds < 1:
        return "at once"
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    milliseconds = microseconds / 1000
    return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:,.0f} ms"


def main() -> int:
    return write_tables(PAGE, {"key_index": key_index, "key_stores": key_stores})


if __name__ == "__main__":
    sys.exit(main())
