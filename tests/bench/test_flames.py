"""Flame graphs of the brokers that benchmarks start."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from bench import flames
from bench.__main__ import run
from bench.flames import Flames
from bench.harness import CannotRun, Options, Scale
from bench.peers.quarry import Quarry
from bench.queue_load import send_body
from bench.waiting_sends import SendSampler
from quarry_mq.store.settings import Durability

LOADED_S: Final = 3.0
"""py-spy reads symbols first, and sees nothing of a broker that waits."""


@pytest.mark.slow
def test_one_is_drawn_of_each_broker_and_shows_what_it_runs(tmp_path: Path) -> None:
    sends = SendSampler(Random(1), 1, send_body("orders", b"body"))
    flames.draw(Flames(tmp_path / "flames", "some"))
    try:
        for number in (1, 2):
            try:
                with closing(Quarry(tmp_path / str(number), Durability.ASYNC)) as broker:
                    broker.start()
                    sends.sample(broker, LOADED_S, [])
            except CannotRun as reason:
                if "permi" in str(reason).lower():
                    pytest.skip("this machine does not let one process look at another")
                raise
    finally:
        flames.draw(Flames())
    drawn = sorted((tmp_path / "flames").iterdir())
    assert [each.name for each in drawn] == ["some-1.svg", "some-2.svg"]
    assert all("<svg" in each.read_text() and "cli/main.py" in each.read_text() for each in drawn)


def test_without_py_spy_a_benchmark_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    options = Options(scale=Scale.TINY, seed=1, scratch=tmp_path, named=True)
    assert "extra `flames`" in str(run("filters", options, tmp_path / "flames")["skipped"])
    assert not (tmp_path / "flames").exists()


def test_none_are_drawn_unless_somebody_asks() -> None:
    assert Flames().begin(1) is None
