"""Copies in processes of their own: one dies, another is promoted, and clients go on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.broker import PROJECT, Broker, quarry, until
from tests.e2e.clients import ClientProcess
from tests.replicas.copies import Copies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    made = Copies(tmp_path)
    try:
        yield made
    finally:
        made.close()


def load(name: str, broker: Broker, home: Path, **options: object) -> ClientProcess:
    command = [sys.executable, "-m", f"tests.e2e.load.{name}", "--endpoint", broker.endpoint]
    for option, value in options.items():
        command += [f"--{option}", str(value)]
    return ClientProcess(command, directory=PROJECT, home=home)


def send_for(seconds: float, broker: Broker, home: Path, prefix: str) -> list[str]:
    """Send for some seconds, and return the ids of the acknowledged messages."""
    acked = home / f"acked-{prefix}"
    sender = load("send", broker, home, topic="orders", prefix=prefix, acked=acked, seed=1)
    time.sleep(seconds)
    sender.close()
    assert sender.next_line(30) == {"problems": []}
    return acked.read_text().split()


def drained(broker: Broker, home: Path, group: str = "readers") -> list[str]:
    drain = load("drain", broker, home, topic="orders", group=group)
    try:
        return list(drain.next_line(60)["found"])
    finally:
        drain.kill()


def verify(store: Path) -> None:
    done = quarry("verify", str(store))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_promoted_copy_has_all_that_it_was_shown_to_have_and_the_old_primary_follows(
    copies: Copies, tmp_path: Path
) -> None:
    a, b = copies["a"], copies["b"]
    a.start()
    a.administer("topic", "create", "orders", "--queues", "3")
    a.administer("group", "create", "readers")
    read = set(send_for(0.5, a, tmp_path, "first"))
    copies.start("b")
    assert set(drained(a, tmp_path)) == read
    verify(b.store)
    sent = set(send_for(1.0, a, tmp_path, "second"))
    copies.wait_for_all("a")
    assert "0 bytes and 0 changes behind" in copies.says("b")
    a.kill()
    until(lambda: "no primary" in copies.says("b"), "b has noticed")
    copies.promote("b")
    found = drained(b, tmp_path)
    assert set(found) == sent, "all that was sent and nothing that was read before"
    assert len(found) == len(set(found))

    later = set(send_for(0.5, b, tmp_path, "third"))
    copies.start("a")
    copies.wait_for_all("b")
    assert copies.says("b") == "ready"
    b.stop()
    a.stop()
    assert copies.log_files("a") == copies.log_files("b")
    verify(tmp_path / "a")
    verify(tmp_path / "b")
    copies.ask("a", "promote")
    a.start()
    assert set(drained(a, tmp_path)) == later
    b.launch()
    until(lambda: "follows a" in copies.says("b"), "b follows the later primary")
    assert copies.files("b").load() != copies.files("a").load()


def test_an_old_primary_that_runs_on_ends_when_it_hears_of_the_new_one(copies: Copies, tmp_path: Path) -> None:
    a, b = copies["a"], copies["b"]
    a.start()
    a.administer("topic", "create", "orders")
    copies.start("b")
    copies.wait_for_all("a")
    copies.promote("b")
    assert a.ended() != 0
    assert "was promoted" in a.words()
    send_for(0.3, b, tmp_path, "new")
    copies.start("a")
    copies.wait_for_all("b")


def test_a_copy_that_is_asked_for_it_is_seeded_again(copies: Copies, tmp_path: Path) -> None:
    a, b = copies["a"], copies["b"]
    a.start()
    a.administer("topic", "create", "orders", "--queues", "3")
    copies.start("b")
    sent = set(send_for(0.5, a, tmp_path, "first"))
    copies.wait_for_all("a")
    b.stop()
    (tmp_path / "b" / "commitlog" / f"{0:020d}").write_bytes(b"no log any more")
    copies.ask("b", "seed")
    copies.start("b")
    copies.wait_for_all("a")
    a.stop()
    copies.promote("b")
    assert set(drained(b, tmp_path)) == sent


def test_a_copy_of_another_store_and_one_without_the_key_are_refused(copies: Copies, tmp_path: Path) -> None:
    copies["a"].start()
    (tmp_path / "other").mkdir()
    other = Copies(tmp_path / "other")
    try:
        other["a"].start()
        other["a"].stop()
        role = other.files("a").load()
        assert role is not None
        other.files("a").save(replace(role, is_primary=False))
        stranger = copies.another("b", store=other["a"].store)
        stranger.launch()
        assert stranger.ready_or_ended() not in {None, 0}
        assert "not a copy of this one" in stranger.words()
        keyless = copies.another("b", store=tmp_path / "keyless", key=other.key)
        keyless.launch()
        until(lambda: "does not have the key" in keyless.words(), "the wrong key is named")
        assert not (tmp_path / "keyless" / "commitlog").exists()
        keyless.stop()
    finally:
        other.close()
