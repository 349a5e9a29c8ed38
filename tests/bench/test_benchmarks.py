"""Every benchmark runs and says what it must: one JSON line with a ratio, the machine and the seed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import BENCHMARKS, run
from bench.harness import Case, Options, Sample, Scale, alternate, cpu_s_of, measure, peak_memory, resident_bytes_of
from bench.index_table import key_index, key_stores
from bench.shard_scaling import Reading, Round
from bench.tables import clients, many_queues, million_queues, rocketmq_store
from tests.console.chromium import needs_chromium

PROJECT = Path(__file__).parents[2]

Line = dict[str, Any]
RunBench = Callable[..., list[Line]]


def command(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=PROJECT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def run_bench(tmp_path: Path) -> RunBench:
    """`run_bench("delivery")` is what standard output holds, line by line; the run must succeed."""

    def run_it(*arguments: str, environment: Mapping[str, str] | None = None) -> list[Line]:
        folders = ["--directory", str(tmp_path), "--results", str(tmp_path / "results")]
        done = command(*arguments, *folders, environment=environment)
        assert done.returncode == 0, done.stderr
        return [json.loads(text) for text in done.stdout.splitlines()]

    return run_it


NEED_JAVA = {
    "front",
    "clients",
    "load_shapes",
    "many_queues",
    "remoting",
    "replication",
    "rocketmq_store",
    "security_cost",
    "spark_jobs",
    "wake_ups",
}
TAKE_LONG = {
    "cluster_exchange",
    "console_opening",
    "console_pages",
    "front_scale",
    "key_index",
    "key_stores",
    "lite_expiry",
    "lite_topics",
    "metrics_scrape",
    "million_queues",
    "native_part",
    "purge",
    "queue_expiry",
    "queue_migration",
    "recovery",
    "redelivery",
    "remoting_crowd",
    "shard_scaling",
    "stalls",
    "ten_million_queues",
    "timers",
}
"""However small their scale: they start brokers, or wait for what a broker does in its own time."""
NEED_CHROMIUM = {"console_opening"}


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] * (name in TAKE_LONG) + [needs_chromium] * (name in NEED_CHROMIUM)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=marks_of(name)) for name in BENCHMARKS if name not in NEED_JAVA],
)
def test_a_benchmark_prints_one_line_with_ratios_machine_and_seed(
    name: str, run_bench: RunBench, tmp_path: Path
) -> None:
    if name == "queue_engines":
        pytest.importorskip("lmdb")
    [line] = run_bench(name, "--tiny", "--seed", "7")
    assert (line["bench"], line["scale"], line["seed"]) == (name, "tiny", 7)
    assert line["machine"]["cores"] >= 1
    assert line["machine"].keys() >= {"python", "kernel", "filesystem", "load_1m"}
    assert line["cases"]
    for case in line["cases"]:
        assert case["per_second"] > 0
        assert case["peer_per_second"] > 0
        assert case["ratio"] > 0
        assert case["cpu_us"] > 0
        assert len(case["runs"]) == len(case["peer_runs"])
        assert case["peer"]
    assert json.loads((tmp_path / "results" / f"{name}.jsonl").read_text()) == line


def test_later_results_are_added_and_nothing_else_is_left(run_bench: RunBench, tmp_path: Path) -> None:
    lines = run_bench("delivery", "--tiny") + run_bench("delivery", "--tiny")
    history = (tmp_path / "results" / "delivery.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in history] == lines
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize(
    "name", ["clients", *(pytest.param(name, marks=pytest.mark.slow) for name in sorted(NEED_JAVA - {"clients"}))]
)
def test_without_java_the_official_client_is_skipped_and_the_run_succeeds(name: str, run_bench: RunBench) -> None:
    [line] = run_bench(name, "--tiny", environment={"PATH": "/nonexistent", "JAVA_HOME": ""})
    assert line["skipped"] in {
        "java is not installed",
        "Spark needs Java 17 or newer: there is no java on PATH, and JAVA_HOME is not set",
    }
    assert "cases" not in line


@pytest.mark.slow
def test_the_official_client_is_run_against_quarry_and_rocketmq(run_bench: RunBench) -> None:
    """Fetches RocketMQ at the first run. No figure is judged: at this size the clients have not even warmed up."""
    [line] = run_bench("clients", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    kinds = [True, False] if line["machine"]["native"] else [False]
    assert [(case["native"], case["durability"], case["mode"]) for case in line["cases"]] == [
        (is_native, durability, mode)
        for is_native in kinds
        for durability in ("sync", "async")
        for mode in ("send", "pipeline", "steady", "receive")
    ]
    assert sum(row.startswith("| Python alone, ") for row in clients(line)) == 8
    for case in line["cases"]:
        assert case["ratio"] > 0
        assert case["server_cpu_ratio"] > 0
        assert 0 < case["p50_ms"] <= case["p99_ms"]
        assert 0 < case["peer_p50_ms"] <= case["peer_p99_ms"]
        assert case["errors"] == case["peer_errors"] == 0


@pytest.mark.slow
def test_the_remoting_client_is_run_against_quarry_and_rocketmq(run_bench: RunBench) -> None:
    [line] = run_bench("remoting", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    assert [(case["mode"], case.get("body")) for case in line["cases"]] == [
        ("send", 256), ("pipeline", 256), ("send", 1024), ("pipeline", 1024), ("pull", None),
    ]  # fmt: skip
    for case in line["cases"]:
        assert case["server_cpu_ratio"] > 0
        assert case["errors"] == case["peer_errors"] == 0


@pytest.mark.slow
def test_the_official_client_is_run_against_both_fronts(run_bench: RunBench) -> None:
    [line] = run_bench("front", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    assert [case["mode"] for case in line["cases"]] == ["pipeline", "send"]
    for case in line["cases"]:
        assert case["per_second"] > 0
        assert case["server_cpu_ratio"] > 0
        assert case["errors"] == case["peer_errors"] == 0


@pytest.mark.slow
def test_the_official_client_is_run_with_tls_and_as_a_user(run_bench: RunBench) -> None:
    [line] = run_bench("security_cost", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    assert [case["mode"] for case in line["cases"]] == ["send", "pipeline", "receive"] * 3
    for case in line["cases"]:
        assert case["per_second"] > 0
        assert case["errors"] == case["peer_errors"] == 0


@pytest.mark.slow
def test_copies_are_measured_under_load_and_while_one_is_made(run_bench: RunBench) -> None:
    [line] = run_bench("replication", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    *loads, seed = line["cases"]
    assert [case["mode"] for case in loads] == ["send", "pipeline", "receive", "steady"] * 2
    for case in loads:
        assert case["per_second"] > 0
        assert case["lag_p99_s"] >= case["lag_p50_s"] >= 0
        assert case["errors"] == case["peer_errors"] == 0
    assert seed["unit"] == "bytes"
    assert seed["per_second"] > 0


@pytest.mark.slow
def test_rocketmqs_store_is_measured_beside_ours(run_bench: RunBench) -> None:
    """Fetches RocketMQ at the first run. No figure is judged."""
    [line] = run_bench("many_queues", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    put, get = line["cases"]
    assert put["stores"] == get["stores"]
    assert set(put["stores"]) == {"Quarry, RocksDB", "Quarry, files", "RocketMQ, RocksDB", "RocketMQ, files"}
    for facts in put["stores"].values():
        assert all(fact > 0 for fact in facts.values()), facts
    [row, *_] = [row for row in many_queues(line) if row.startswith("| 80 x 4 |")]
    assert "Quarry, RocksDB" in row


@pytest.mark.slow
def test_every_part_of_rocketmqs_store_is_measured_beside_ours(run_bench: RunBench) -> None:
    """No figure is judged but how much there was to read, which no noise changes."""
    [line] = run_bench("rocketmq_store", "--tiny")
    if "skipped" in line:
        pytest.skip(line["skipped"])
    names = [case["case"] for case in line["cases"] if case["peer"] == "RocketMQ, RocksDB"]
    assert names == [case["case"] for case in line["cases"] if case["peer"] == "RocketMQ, files"]
    assert len(names) == 6
    for case in line["cases"]:
        assert case["ratio"] > 0
        assert case["cpu_us"] > 0
    for facts in (line["cases"][0]["facts"], line["cases"][0]["peer_facts"]):
        assert len(facts) == 8
        assert all(fact > 0 for fact in facts.values()), facts
    rows = list(rocketmq_store(line))
    assert sum(row.startswith("| 80 queues: append and dispatch; ") for row in rows) == 2


@pytest.mark.slow
def test_a_broker_with_many_queues_is_compared_in_all_that_its_page_says(run_bench: RunBench) -> None:
    [line] = run_bench("million_queues", "--tiny")
    rows = list(million_queues(line))
    for what in ("made and filled", "start after a clean stop", "start after kill -9", "sends", "sends, 256 in flight"):
        assert sum(f": {what} |" in row for row in rows) == 2, "of topics, and light ones"


def test_the_front_is_asked_for_all_that_its_page_says(run_bench: RunBench) -> None:
    """No figure is judged but the bound of what unread streams take, which no size of the run changes."""
    [line] = run_bench("front_scale", "--tiny")
    connections, waiting, unread = line["cases"]
    assert connections["connections"] > 1
    assert 0 < waiting["wake_p50_ms"] <= waiting["wake_p99_ms"] <= waiting["wake_max_ms"]
    assert unread["bytes_grown_per_reader"] < 16 * 1024 * 1024


@pytest.mark.slow
def test_keys_are_looked_for_in_every_stage(run_bench: RunBench) -> None:
    """No rate is judged; how much is read does not depend on the size of the run."""
    [line] = run_bench("key_index", "--tiny")
    stages = {case["stage"]: case for case in line["cases"] if "stage" in case}
    assert set(stages) == {"filling", "sealed", "compacted", "uploaded"}
    for case in stages.values():
        assert case["lookups"]["id"]["items"] == case["lookups"]["id"]["files"] == 1
        assert case["lookups"]["missing"]["items"] == 0
    assert stages["sealed"]["reads_each"] > stages["compacted"]["reads_each"] == 2
    assert stages["uploaded"]["reads_each"] == 2
    newest = line["cases"][-2]["lookups"]
    assert newest["customer, newest"]["files"] == 1
    assert newest["customer, all"]["files"] == 10
    [row] = [row for row in key_index(line) if row.startswith("| compacted |") and row.endswith(" KiB |")]
    assert row.count(" µs") + row.count(" ms") == 9


@pytest.mark.slow
def test_all_ways_to_keep_keys_answer_alike(run_bench: RunBench) -> None:
    [line] = run_bench("key_stores", "--tiny")
    stores = line["cases"][0]["stores"]
    assert set(stores) == {"tiered index", "RocketMQ's index files", "RocksDB, by key", "RocksDB, by time"}
    found = [{name: facts["items"] for name, facts in store["lookups"].items()} for store in stores.values()]
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0]["an id and its time"] == found[0]["an id"] == 1
    for store in stores.values():
        assert store["expire_s"] > 0
        assert store["bytes_per_item"] > 0
    rows = list(key_stores(line))
    assert sum(row.startswith("| an id, p50 / p99 |") for row in rows) == 1


def test_cpu_time_of_another_process_is_counted() -> None:
    with subprocess.Popen([sys.executable, "-c", "sum(range(3_000_000)); input()"], stdin=subprocess.PIPE) as process:
        while cpu_s_of(process.pid) < 0.02:
            assert process.poll() is None
        assert cpu_s_of(process.pid) < 60
        assert resident_bytes_of(process.pid) > 1024 * 1024
        process.communicate(b"\n")


def test_the_most_memory_in_use_is_seen() -> None:
    with peak_memory() as peak:
        buffer = bytearray(64 << 20)
        buffer[:: 1 << 12] = bytes([1]) * len(buffer[:: 1 << 12])
    del buffer
    assert peak.bytes > 48 << 20
    with peak_memory() as peak:
        pass
    assert peak.bytes < 48 << 20


def test_a_first_look_at_everything_leaves_the_slow_peer_out(tmp_path: Path) -> None:
    options = Options(scale=Scale.QUICK, seed=1, scratch=tmp_path, named=False)
    assert "python -m bench clients" in run("clients", options)["skipped"]


def test_a_benchmark_that_fails_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = Options(scale=Scale.TINY, seed=1, scratch=tmp_path / "missing", named=True)
    line = run("append_dispatch", options)
    assert line["failed"].startswith("FileNotFoundError: ")
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["delivery", "bogus"], "no such benchmark: bogus"),
        (["delivery", "--directory", "/nonexistent/place"], "no such directory: /nonexistent/place"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments: list[str], complaint: str) -> None:
    done = command(*arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not done.stdout


def test_samples_are_taken_in_turns() -> None:
    order: list[str] = []

    def sample(name: str) -> Sample:
        order.append(name)
        return Sample(1, 1.0, 1.0)

    alternate(3, lambda: sample("ours"), lambda: sample("peer"))
    assert order == ["ours", "peer"] * 3


def test_the_ratio_is_taken_from_neighbouring_samples() -> None:
    """A machine that becomes ten times slower half way changes the rates, not the ratio."""
    ours = [Sample(100, 1.0, 0.1), Sample(100, 10.0, 0.1), Sample(100, 10.0, 0.1)]
    theirs = [Sample(200, 1.0, 0.1), Sample(200, 10.0, 0.1), Sample(200, 10.0, 0.1)]
    case = Case(name="case", unit="messages", peer="peer", ours=ours, theirs=theirs, details={"target": 5})
    facts = case.facts()
    assert facts["ratio"] == 0.5
    assert facts["per_second"] == 10.0
    assert facts["cpu_us"] == 1000.0
    assert facts["target"] == 5


def test_the_capacity_of_shards_is_what_they_do_with_a_core_each() -> None:
    """However long their clients let them wait."""
    one, other = Reading(Sample(1_000, 9.0, 0.5), loop_s=0.4), Reading(Sample(1_000, 5.0, 0.25), loop_s=0.2)
    both = Round([one, other], others_cpu_s=0.0)
    assert both.capacity.per_second == pytest.approx(2_000 + 4_000)
    assert both.loops_per_second == pytest.approx(2_500 + 5_000)
    assert both.wall_per_second == pytest.approx(2_000 / 9)
    supervised = Round([one, other], others_cpu_s=0.5)
    assert supervised.capacity.per_second == pytest.approx(1_000 / 0.75 + 1_000 / 0.5)
    assert supervised.capacity.cpu_s == pytest.approx(1.25)


def test_measuring_counts_wall_and_cpu_time() -> None:
    sample = measure(lambda: sum(1 for _ in range(200_000)))
    assert sample.done == 200_000
    assert sample.wall_s > 0
    assert sample.cpu_s > 0


def test_the_page_lists_every_benchmark_with_its_question() -> None:
    page = (PROJECT / "docs" / "benchmarks.md").read_text()
    listed = re.findall(r"^\| `([a-z_]+)` \| (.+?\?) \| ", page, flags=re.MULTILINE)
    assert listed == [(name, import_module(f"bench.{name}").QUESTION) for name in BENCHMARKS]
