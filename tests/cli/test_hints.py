"""Hints of commands, against a broker and stores that make each error; users in test_access, TLS in test_contexts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.context_file import FILE_VARIABLE
from quarry_mq.cli.main import app
from quarry_mq.cli.terminal.hints import RULES, hint
from quarry_mq.store.fs import PosixDisk
from tests.cli.online_runner import Quarry
from tests.cli.said import hint_in
from tests.conftest import GoldenStore
from tests.e2e.broker import SMALL_SEGMENTS, Broker


@pytest.fixture(scope="module")
def quarry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quarry]:
    directory = tmp_path_factory.mktemp("hints")
    broker = Broker(directory / "store", logs=directory / "logs", environment=SMALL_SEGMENTS)
    try:
        quarry = Quarry(broker.start())
        for name in ("orders", "orders-eu", "payments"):
            quarry.run("topic", "create", name)
        quarry.run("topic", "create", "sessions", "--type", "lite")
        quarry.run("group", "create", "billing")
        quarry.run("topic", "create", "events", "--type", "fifo")
        quarry.run("produce", "events", "x", "--message-group", "g")
        line = tmp_path_factory.mktemp("lines") / "lite.jsonl"
        line.write_text('{"body": "x", "liteTopic": "device-12"}\n')
        quarry.run("produce", "sessions", "--file", line, "--json-lines")
        quarry.run("message", "resend", "--topic", "events", "--queue", 0, "--dry-run")
        yield quarry
        broker.stop()
    finally:
        broker.close()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("topic", "show", "order"), "did you mean orders, orders-eu?"),
        (("topic", "show", "unlike"), "`quarry topic create unlike` creates it"),
        (("message", "query", "--topic", "paymets"), "did you mean payments?"),
        (("topic", "route", "paymets"), "did you mean payments?"),
        (("call", "Admin/GetTopicRoute", '{"topic": {"name": "paymets"}}'), "did you mean payments?"),
        (("group", "show", "biling"), "did you mean billing?"),
        (("group", "consumers", "unlike"), "`quarry group create unlike` creates it"),
        (("user", "show", "nobody"), "`quarry user create nobody` creates it"),
        (("settings", "get", "limits.client"), "did you mean limits.clients"),
        (("settings", "get", "nothing"), "`quarry settings list` lists the settings that can be changed"),
        (("lite", "show", "sessions", "nobody"), "`quarry lite list sessions` lists all"),
        (("lite", "show", "sessions", "device12"), "did you mean device-12?"),
        (("job", "show", 77), "; `quarry job list` lists all"),
        (("produce", "orders", "x", "--message-group", "g"), "quarry topic create NAME --type fifo"),
        (("topic", "update", "events", "--queues", 3), "`quarry topic update events --permission read`"),
    ],
)
def test_a_live_brokers_refusal_says_what_to_try(quarry: Quarry, words: tuple[object, ...], advice: str) -> None:
    assert advice in quarry.hint(*words)


def test_dead_letters_are_no_topic_that_somebody_makes(quarry: Quarry) -> None:
    result = quarry.result("dead-letters", "list", "nobody")
    assert "no dead letters" in result.stderr
    assert "hint: " not in result.stderr


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("tpic", "list"), "'topic'"),
        (("topic", "lst"), "'list'"),
        (("topic", "list", "--prefx", "a"), "--prefix"),
        (("--contxt", "a", "topic", "list"), "--context"),
    ],
)
def test_a_mistyped_word_is_told_with_what_was_meant(words: tuple[str, ...], meant: str) -> None:
    result = Quarry(None).result(*words)
    assert result.exit_code == 2
    assert meant in result.stderr


def test_nobody_at_the_address(tmp_path: Path) -> None:
    contexts = tmp_path / "contexts.toml"
    words = ["topic", "list", "--admin", "127.0.0.1:1"]
    for text, said in (("", "or --context"), ('[prod]\nadmin = "a:1"\n', "--context (prod)"), ("[", "or --context")):
        contexts.write_text(text)
        told = hint_in(CliRunner().invoke(app, words, env={FILE_VARIABLE: str(contexts)}).stderr)
        assert "`quarry serve --store DIR`" in told
        assert told.endswith(said)
    contexts.unlink()
    told = CliRunner().invoke(app, ["--context", "prod", *words[:2]], env={FILE_VARIABLE: str(contexts)}).stderr
    assert "quarry context add" in hint_in(told)


def test_stores(tmp_path: Path, golden_copy: GoldenStore) -> None:
    offline = Quarry(None)
    assert "commitlog/" in offline.hint("verify", tmp_path / "nothing")
    store = golden_copy("rocks-clean") / "store"
    lock = PosixDisk().lock(store / "lock")
    assert "stop that broker first" in offline.hint("recover", store)
    assert "`quarry verification begin`" in offline.hint("verify", store)
    lock.release()


def test_a_member_that_is_near_is_named() -> None:
    assert hint("127.0.0.1:8082: no member 'quary-1'", lambda _: ["quarry-1", "other"]) == "did you mean quarry-1?"


def test_every_rule_is_met_by_a_test() -> None:
    """Those that need a slow or a broken broker by their text alone."""
    for line in (
        "127.0.0.1:8082: deadline exceeded: Deadline Exceeded",
        "127.0.0.1:8082: unauthenticated: the date X is 40 s behind the broker's clock, more than security.date",
        "127.0.0.1:8082: no member 'b'",
        "consume_queue.read says `rocksdb`, which in phase dw_file does not hold everything",
    ):
        assert hint(line), line
    assert hint("all is well") is None
    assert len({rule.pattern for rule in RULES}) == len(RULES)
