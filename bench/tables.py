"""`python -m bench.tables NAME...` writes tables of the last results of these benchmarks to docs/benchmarks.md.

The text between the two marks of a table is replaced. Exit status 1 when there is no result, or no such table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
PAGE: Final = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def many_queues(line: dict[str, Any]) -> Iterator[str]:
    yield "| queues x messages | store | put/s (CPU) | get/s (CPU) | B per entry: lengths, allocated | start | memory |"
    yield "|---|---|---|---|---|---|---|"
    for case in line["cases"]:
        if not case["case"].endswith(": put"):
            continue  # both cases of a number of queues hold the same facts
        for store, facts in case["stores"].items():
            start = f"{facts['start_s']:.2f} s (CPU {facts['start_cpu_s']:.2f})"
            memory = [facts[f"memory_mb_after_{when}"] for when in ("puts", "start", "gets")]
            yield (
                f"| {facts['queues']:,} x {case['entries']} | {store} "
                f"| {_rate(facts, 'put')} | {_rate(facts, 'get')} "
                f"| {facts['apparent_bytes_per_entry']:,.1f}, {facts['allocated_bytes_per_entry']:,.1f} "
                f"| {start} | {', '.join(f'{each:,}' for each in memory)} MB |"
            )


def rocketmq_store(line: dict[str, Any]) -> Iterator[str]:
    yield "| | Quarry (CPU) | peer (CPU) | ratio | target |"
    yield "|---|---|---|---|---|"
    for case in line["cases"]:
        if case["unit"] == "starts":
            sides = [
                f"{case[f'{side}ready_s']:.2f} s, of them opening {case[f'{side}opened_s']:.2f} s"
                for side in ("", "peer_")
            ]
        else:
            sides = [f"{case[f'{side}per_second']:,.0f}/s ({case[f'{side}cpu_us']:.1f} µs)" for side in ("", "peer_")]
        target = f"{case['target']:g}" if "target" in case else ""
        yield f"| {case['case']}; {case['peer']} | {' | '.join(sides)} | {case['ratio']:.2f} | {target} |"
    yield ""
    yield "| | B per entry | resident after appends, start, reads | private |"
    yield "|---|---|---|---|"
    for case in line["cases"]:
        if "facts" not in case:
            continue
        for store, facts in (("Quarry", case["facts"]), (case["peer"], case["peer_facts"])):
            resident, private = (
                ", ".join(f"{facts[f'{what}_mb_after_{when}']:,.0f}" for when in ("appends", "start", "reads"))
                for what in ("resident", "private")
            )
            name = f"{case['queues']:,} queues x {case['entries']}: {store}"
            yield f"| {name} | {facts['bytes_per_entry']:,.2f} | {resident} MB | {private} MB |"


def million_queues(line: dict[str, Any]) -> Iterator[str]:
    yield "| | rate | with few | ratio | server CPU per unit | load average |"
    yield "|---|---|---|---|---|---|"
    for case in line["cases"]:
        if case["unit"] == "starts":
            rates = f"ready after {case['ready_s']:.2f} s | {case['peer_ready_s']:.2f} s | {case['longer_s']:+.2f} s"
            cpu = f"{case['cpu_us'] / 1e6:.2f} / {case['peer_cpu_us'] / 1e6:.2f} s"
        else:
            rates = f"{case['per_second']:,.0f}/s | {case['peer_per_second']:,.0f}/s | {case['ratio']:.2f}"
            cpu = f"{case['cpu_us']:.1f} / {case['peer_cpu_us']:.1f} µs"
        yield f"| {case['case']} | {rates} | {cpu} | {case['load_1m']} |"
    yield ""
    columns = ["idle after a start", "after sends right then", "after sends", "with many in flight", "after receives"]
    yield f"| memory beyond an empty broker | {' | '.join(columns)} |"
    yield "|---|---|---|---|---|---|"
    for kind in ("queues of topics", "light queues"):
        cases = [case for case in line["cases"] if kind in case["case"] and "memory_mb_after" in case]
        for name, prefix in (("queues", ""), ("peer_queues", "peer_")) if cases else ():
            seen = [f"{cases[0][prefix + 'memory_mb_idle']:.0f} MB"]
            seen += [f"{case[prefix + 'memory_mb_after']:.0f} MB" for case in cases]
            yield f"| {cases[0][name]:,} {kind} | {' | '.join(seen + [''] * (len(columns) - len(seen)))} |"


def clients(line: dict[str, Any]) -> Iterator[str]:
    yield "| | Quarry | RocketMQ | ratio | server CPU per message | ratio | p50 | p99 |"
    yield "|---|---|---|---|---|---|---|---|"
    for case in line["cases"]:
        rates = f"{case['per_second']:,.0f}/s | {case['peer_per_second']:,.0f}/s | {case['ratio']:.2f}"
        cpu = f"{case['cpu_us']:.0f} / {case['peer_cpu_us']:.0f} µs | {case['server_cpu_ratio']:.2f}"
        times = (f"{case[f'{name}_ms']:.1f} / {case[f'peer_{name}_ms']:.1f} ms" for name in ("p50", "p99"))
        yield f"| {case['case']} | {rates} | {cpu} | {' | '.join(times)} |"


TABLES: Final = {
    "many_queues": many_queues,
    "rocketmq_store": rocketmq_store,
    "million_queues": million_queues,
    "ten_million_queues": million_queues,
    "clients": clients,
}


def main(names: Sequence[str]) -> int:
    if not names or not TABLES.keys() >= set(names):
        print(f"usage: python -m bench.tables {'|'.join(TABLES)} ...", file=sys.stderr)
        return 1
    return write_tables(PAGE, {name: TABLES[name] for name in names})


def write_tables(page: Path, tables: Mapping[str, Callable[[dict[str, Any]], Iterator[str]]]) -> int:
    """Put a table of the last result of each benchmark between its marks; return the exit status."""
    text = page.read_text()
    for name, rows in tables.items():
        history = RESULTS / f"{name}.jsonl"
        results = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
        measured = [line for line in results if "cases" in line]
        if not measured:
            print(f"{history}: no result of {name}", file=sys.stderr)
            return 1
        begin, end = (f"<!-- {edge} of {name} -->\n" for edge in ("begin", "end"))
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = f"{before}{begin}{chr(10).join(rows(measured[-1]))}\n{end}{after}"
    page.write_text(text)
    return 0


def _rate(facts: dict[str, Any], what: str) -> str:
    return f"{facts[f'{what}_per_second']:,} ({facts[f'{what}_cpu_us']:.1f} µs)"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
