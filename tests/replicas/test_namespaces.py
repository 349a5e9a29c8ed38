"""A primary and a copy on two machines, as network namespaces are: no fault of the network stops the primary."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.e2e.broker import until
from tests.replicas.copies import Copies
from tests.replicas.link import Link, ip
from tests.replicas.test_processes import load, verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

NAMESPACE: Final = f"quarry-{os.getpid()}"
HERE, THERE = "10.77.81.1", "10.77.81.2"
INSIDE: Final = ("ip", "netns", "exec", NAMESPACE)


@pytest.fixture
def link() -> Iterator[Link]:
    """The link to a second machine at `THERE`."""
    ip("netns", "add", NAMESPACE)
    try:
        ip("-n", NAMESPACE, "link", "set", "lo", "up")
        with closing(Link(NAMESPACE, HERE, THERE)) as made:
            yield made
    finally:
        ip("netns", "del", NAMESPACE)


@pytest.fixture
def copies(tmp_path: Path, link: Link) -> Iterator[Copies]:
    made = Copies(tmp_path, settings={"network.plain_text": '["replication"]'}, hosts={"a": HERE, "b": THERE})
    with closing(made):
        yield made


def follows(copies: Copies) -> bool:
    return 'quarry_replica_connected{replica="b"} 1.0' in copies["a"].get("/metrics")[1]


def progress(acked: Path, seconds: float) -> int:
    """Return how many messages are acknowledged meanwhile."""
    before = acked.read_text().count("\n")
    time.sleep(seconds)
    return acked.read_text().count("\n") - before


def replicating(copies: Copies) -> None:
    """Start the primary and its copy, and create a topic."""
    a, b = copies["a"], copies["b"]
    a.start()
    b.launch(under=INSIDE)
    until(lambda: follows(copies), f"b follows: {b.words()}")
    a.administer("topic", "create", "orders", "--queues", "4")


def end_equal(copies: Copies) -> None:
    """Wait until the copy has everything, stop both, and compare them."""
    a, b = copies["a"], copies["b"]
    copies.wait_for_all("a")
    b.stop()
    a.stop()
    assert copies.log_files("a") == copies.log_files("b")
    verify(b.store)


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_partition_does_not_stop_the_primary_and_the_copy_catches_up(
    copies: Copies, link: Link, tmp_path: Path, both_ways: bool
) -> None:
    replicating(copies)
    acked = tmp_path / "acked"
    sender = load("send", copies["a"], tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    usual = progress(acked, 3)
    assert usual > 0
    link.is_cut_from_here, link.is_cut_from_there = True, both_ways
    for _ in range(15):
        assert progress(acked, 1) > usual / 3 / 10, "the primary goes on at once"
    link.mend()
    sender.close()
    sender.next_line(30)
    end_equal(copies)


def test_short_cuts_again_and_again_leave_both_equal(copies: Copies, link: Link, tmp_path: Path) -> None:
    chance = Random(7)
    replicating(copies)
    acked = tmp_path / "acked"
    sender = load("send", copies["a"], tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    for _ in range(8):
        link.is_cut_from_here, link.is_cut_from_there = True, chance.random() < 0.5
        time.sleep(chance.uniform(0.05, 2.5))
        link.mend()
        time.sleep(chance.uniform(0.05, 1.0))
    assert progress(acked, 1) > 0
    sender.close()
    sender.next_line(30)
    end_equal(copies)


def test_delay_and_loss_make_the_copy_late_and_nothing_else(copies: Copies, link: Link, tmp_path: Path) -> None:
    """TCP carries some 100 kB/s: 100 ms there and back, packets that overtake each other, 5 % of them lost."""
    replicating(copies)
    acked = tmp_path / "acked"
    sender = load("send", copies["a"], tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    usual = progress(acked, 3)
    link.delay_s, link.jitter_s, link.loss = 0.05, 0.02, 0.05
    for _ in range(15):
        assert progress(acked, 1) > usual / 3 / 10, "the primary goes on at once"
    sender.close()
    sender.next_line(30)
    link.mend()
    end_equal(copies)


def test_a_copy_that_is_seeded_over_a_bad_link_becomes_equal(copies: Copies, link: Link, tmp_path: Path) -> None:
    a, b = copies["a"], copies["b"]
    link.delay_s, link.jitter_s, link.loss = 0.02, 0.01, 0.02
    a.start()
    a.administer("topic", "create", "orders", "--queues", "4")
    acked = tmp_path / "acked"
    sender = load("send", a, tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    assert progress(acked, 3) > 0
    b.launch(under=INSIDE)
    until(lambda: follows(copies), f"b follows: {b.words()}")
    assert progress(acked, 5) > 0
    sender.close()
    sender.next_line(30)
    end_equal(copies)
