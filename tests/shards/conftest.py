"""Fixtures of the tests of shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.shards.running import Supervisor, arguments_of

RunPrograms = Callable[..., Supervisor]


@pytest.fixture
def run_programs(tmp_path: Path) -> Iterator[RunPrograms]:
    """`run_programs("echo hello; exit 1", …)`: a supervisor with one shard for each script, ended with the test."""
    started: list[Supervisor] = []

    def run(*scripts: str, kept_open: Sequence[str] = ()) -> Supervisor:
        started.append(Supervisor(arguments_of(*scripts, kept_open=kept_open), tmp_path))
        return started[-1]

    yield run
    for supervisor in started:
        supervisor.close()
