"""`python -m bench [NAME ...]`: run the benchmarks, one JSON line each on standard output.

The lines are also added to `bench/results/NAME.jsonl`. A table of all results ends the run on standard error.
Exit status: 0 when every benchmark ran or said why it cannot, 1 when one failed.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from bench.flames import Flames, draw
from bench.harness import CannotRun, Options, Scale
from bench.report import Line, keep, line_of, show, with_cases
from quarry_mq.server.observability.logs import configure_logs

BENCHMARKS: Final = (
    "append_dispatch",
    "log_flush",
    "unit_reads",
    "queue_engines",
    "delivery",
    "in_flight",
    "filters",
    "native_part",
    "key_index",
    "key_stores",
    "timers",
    "redelivery",
    "stalls",
    "purge",
    "queue_expiry",
    "lite_expiry",
    "queue_migration",
    "recovery_scan",
    "recovery",
    "spark_jobs",
    "many_queues",
    "rocketmq_store",
    "million_queues",
    "ten_million_queues",
    "metrics_scrape",
    "console_pages",
    "console_opening",
    "front",
    "front_scale",
    "security_cost",
    "replication",
    "shard_scaling",
    "cluster_exchange",
    "lite_topics",
    "clients",
    "remoting",
    "remoting_crowd",
    "load_shapes",
    "wake_ups",
)
RESULTS: Final = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parse(arguments)
    lines = []
    for name in asked.names or BENCHMARKS:
        with tempfile.TemporaryDirectory(prefix=f"quarry-bench-{name}-", dir=asked.directory) as scratch:
            options = Options(scale=asked.scale, seed=asked.seed, scratch=Path(scratch), named=bool(asked.names))
            line = run(name, options, asked.flames)
        print(json.dumps(line), flush=True)
        if asked.flames is None:
            keep(line, asked.results)
        lines.append(line)
        gc.collect()  # so that no benchmark pays for the one before
    show(lines)
    return 1 if any("failed" in line for line in lines) else 0


def run(name: str, options: Options, flames: Path | None = None) -> Line:
    """Run one benchmark and return its line: its cases, or why it was skipped, or how it failed."""
    benchmark = import_module(f"bench.{name}")
    line = line_of(name, benchmark.QUESTION, options)
    print(f"{name}: {benchmark.QUESTION}", file=sys.stderr, flush=True)
    try:
        draw(Flames(flames, name))
        return with_cases(line, benchmark.run(options))
    except CannotRun as reason:
        return {**line, "skipped": str(reason)}
    except Exception as error:  # noqa: BLE001 - the other benchmarks still run; the exit status tells
        traceback.print_exc()
        return {**line, "failed": f"{type(error).__name__}: {error}"}


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"benchmarks to run (default: {' '.join(BENCHMARKS)})")
    scale = parser.add_mutually_exclusive_group()
    for each, meaning in ((Scale.QUICK, "a first look: about a minute"), (Scale.TINY, "only see that they run")):
        scale.add_argument(f"--{each.value}", dest="scale", action="store_const", const=each, help=meaning)
    parser.set_defaults(scale=Scale.FULL)
    parser.add_argument("--seed", type=int, default=1, help="of all random choices (default %(default)s)")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where the stores lie (default: the system's)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="history (default %(default)s)")
    parser.add_argument(
        "--flames", type=Path, metavar="DIR", help="draw a flame graph of each broker there; the line is not kept"
    )
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)} (there are: {', '.join(BENCHMARKS)})")
    if asked.directory is not None and not asked.directory.is_dir():
        parser.error(f"no such directory: {asked.directory}")
    return asked


if __name__ == "__main__":
    configure_logs("auto", "error")  # to standard error: standard output is for results
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the servers it started too
    sys.exit(main())
