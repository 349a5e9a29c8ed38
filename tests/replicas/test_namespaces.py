"""A primary and a copy on two machines, as network namespaces are: no fault of the network stops the primary.

The kernel of a test machine may have no `netem`, so delays are made by a forwarder, and a partition by a route.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.e2e.broker import until
from tests.replicas.copies import Copies
from tests.replicas.test_processes import load, verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2"),
]

NAMESPACE: Final = f"quarry-{os.getpid()}"
HERE, THERE = "10.77.81.1", "10.77.81.2"
INSIDE: Final = ("ip", "netns", "exec", NAMESPACE)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[None]:
    """A second machine at `THERE`."""
    outside, inside = f"qo{os.getpid()}"[:15], f"qi{os.getpid()}"[:15]
    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside)
        ip("link", "set", inside, "netns", NAMESPACE)
        ip("addr", "add", f"{HERE}/30", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", NAMESPACE, "addr", "add", f"{THERE}/30", "dev", inside)
        ip("-n", NAMESPACE, "link", "set", inside, "up")
        ip("-n", NAMESPACE, "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", NAMESPACE)  # its end of the pair goes with it, and the other end, too


@contextmanager
def cut_off(*, both_ways: bool) -> Iterator[None]:
    """No packet arrives at the other machine, and none from there if `both_ways`; nobody is told."""
    ip("route", "add", "blackhole", f"{THERE}/32")
    if both_ways:
        ip("-n", NAMESPACE, "route", "add", "blackhole", f"{HERE}/32")
    try:
        yield
    finally:
        ip("route", "del", "blackhole", f"{THERE}/32")
        if both_ways:
            ip("-n", NAMESPACE, "route", "del", "blackhole", f"{HERE}/32")


@pytest.fixture
def copies(tmp_path: Path, network: None) -> Iterator[Copies]:
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


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_partition_does_not_stop_the_primary_and_the_copy_catches_up(
    copies: Copies, tmp_path: Path, both_ways: bool
) -> None:
    a, b = copies["a"], copies["b"]
    a.start()
    b.launch(under=INSIDE)
    until(lambda: follows(copies), f"b follows: {b.words()}")
    a.administer("topic", "create", "orders", "--queues", "4")
    acked = tmp_path / "acked"
    sender = load("send", a, tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    usual = progress(acked, 3)
    assert usual > 0
    with cut_off(both_ways=both_ways):
        for _ in range(15):
            assert progress(acked, 1) > usual / 3 / 10, "the primary goes on at once"
    sender.close()
    sender.next_line(30)
    copies.wait_for_all("a")
    b.stop()
    a.stop()
    assert copies.log_files("a") == copies.log_files("b")
    verify(b.store)


def test_short_cuts_again_and_again_leave_both_equal(copies: Copies, tmp_path: Path) -> None:
    chance = Random(7)
    a, b = copies["a"], copies["b"]
    a.start()
    b.launch(under=INSIDE)
    until(lambda: follows(copies), "b follows")
    a.administer("topic", "create", "orders", "--queues", "4")
    acked = tmp_path / "acked"
    sender = load("send", a, tmp_path, topic="orders", prefix="m", acked=acked, seed=1, concurrency=4)
    for _ in range(8):
        with cut_off(both_ways=chance.random() < 0.5):
            time.sleep(chance.uniform(0.05, 2.5))
        time.sleep(chance.uniform(0.05, 1.0))
    assert progress(acked, 1) > 0
    sender.close()
    sender.next_line(30)
    copies.wait_for_all("a")
    b.stop()
    a.stop()
    assert copies.log_files("a") == copies.log_files("b")
    verify(b.store)
