"""The modules that a call passes are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.journey import Journey, table
from bench.peers.quarry import PROJECT


def test_a_module_counts_if_each_call_passed_it() -> None:
    journey = Journey.of("call", [["a.x", "a.x", "a.y", "b"], ["a.x", "b", "a.x", "b", "c"]])
    assert journey == Journey("call", frozenset({"a.x", "b"}), calls=4, changes=2)


def test_the_table_counts_modules_and_their_packages() -> None:
    _, row = table([Journey("call", frozenset({"a.x", "a.y", "b.z"}), calls=17, changes=9)])
    assert row.split() == ["call", "3", "2", "17", "9"]


def test_a_traced_command_tells_its_calls_apart_from_its_imports(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    command = [sys.executable, "-m", "bench.peers.traced", str(trace), "python", "--version"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("quarry ")
    told = json.loads(trace.read_text())
    assert "cli.main" in told["calls"]
    assert "cli.command_table" in told["imports"]
    assert "cli.command_table" not in told["calls"]
    assert not [module for module in told["imports"] if module.startswith("protocol.proto")]
