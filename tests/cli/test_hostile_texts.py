"""Texts of strangers are shown on a terminal and steer nothing. In a pipe every byte is as it was."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner

from quarry_mq.cli.offline.opened_store import logs_aside
from quarry_mq.cli.terminal.text import harmless, say
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.messages.property_names import DEAD_LETTER_TOPIC
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.settings import StoreSettings
from tests.cli.online_runner import Quarry, broker_over
from tests.e2e.broker import PROJECT, Broker, clean_environment
from tests.house.source import name, production_files
from tests.store.assembly import message

STEERS = re.compile(
    "[\x07\x08\x9b\x85\x0b\x0c\u00ad\u061c\u200b-\u200f\u2028\u2029\u202a-\u202e\u2060-\u2069\ufeff\U000e0001]"
)
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eexe\u2028\u2066\ufeff\U000e0001\x85"
FORGED = "\nforged line"


def fill(root: Path) -> None:
    """Messages with hostile text wherever a sender or a store of others can have it."""
    settings = StoreSettings(root=root, segment_size=16 * 1024 * 1024)
    store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
    for topic in ("orders", "%DLQ%billing"):
        store.topics.create(Topic(topic, TopicType.NORMAL, 1, 1))
    text = HOSTILE + FORGED
    fields = {"UNIQ_KEY": f"M{text}", "KEYS": f"k {text}", "TAGS": text, "colour": text, text: "value"}
    fields |= {"__SHARDINGKEY": text, "__BORNHOST": text, "TRACE_CONTEXT": text, DEAD_LETTER_TOPIC: text}
    for topic in ("orders", "%DLQ%billing", f"foreign{text}"):
        store.messages.append([message(topic, 0, f"body {text}".encode(), **fields)])
        store.messages.append([message(topic, 0, b"\xff" + text.encode(), **fields)])
    store.messages.dispatch(store.messages.flush())
    store.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with broker_over(tmp_path_factory.mktemp("hostile"), fill) as broker:
        yield broker


def on_terminal(*words: str) -> str:
    """All that the command writes to the terminal that is its output and its errors."""
    ours, theirs = pty.openpty()
    environment = {**clean_environment(), "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "quarry_mq.cli.main", *words],
        cwd=PROJECT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # nobody holds the other end any more
            break
        if not part:
            break
        written += part
    os.close(ours)
    process.wait(timeout=60)
    return written.decode()


def assert_harmless(text: str, words: Sequence[str]) -> None:
    assert "Traceback" not in text, (words, text)
    assert not STEERS.search(text), (words, text)
    assert "\x1b]" not in text, (words, text)
    assert "\x1b[2J" not in text, (words, text)


ONLINE: list[tuple[list[str], bool]] = [
    (["browse", "orders", "--from", "earliest"], True),
    (["browse", "orders", "--from", "earliest", "--json"], True),
    (["consume", "orders", "--group", "billing", "--limit", "2", "--endpoint", "{endpoint}"], True),
    (["tail", "orders", "--from", "earliest", "--limit", "2", "--endpoint", "{endpoint}"], True),
    (["tail", "orders", "--from", "earliest", "--limit", "2", "--json", "--endpoint", "{endpoint}"], True),
    (["message", "show", "--topic", "orders", "--queue", "0", "--offset", "0"], True),
    (["message", "show", "--topic", "orders", "--queue", "0", "--offset", "0", "--json"], True),
    (["message", "show", "--topic", "orders", "--queue", "0", "--offset", "0", "--output", "-"], True),
    (["message", "query", "--topic", "orders"], True),
    (["message", "query", "--topic", "orders", "--key", "k"], True),
    (["message", "trace", "--topic", "orders", "--key", "k"], True),
    (["dead-letters", "list", "billing"], False),
    (["dead-letters", "list", "billing", "--json"], False),
    (["topic", "show", HOSTILE], False),
    (["topic", "create", HOSTILE], False),
    (["group", "show", HOSTILE], False),
    (["message", "show", HOSTILE, "--topic", "orders"], False),
    (["browse", "orders", "--from", HOSTILE], False),
    (["browse", "orders", "--sql", HOSTILE], False),
]
OFFLINE = [["decode"], ["decode", "--json"], ["queues"], ["queues", "--json"], ["verify"], ["recover", "--dry-run"]]


@pytest.mark.parametrize(
    ("words", "shows_it"), ONLINE, ids=[" ".join(words[:2]) + str(at) for at, (words, _) in enumerate(ONLINE)]
)
def test_commands_of_a_broker_steer_no_terminal(broker: Broker, words: list[str], shows_it: bool) -> None:
    given = [each.format(endpoint=broker.endpoint) if each == "{endpoint}" else each for each in words]
    text = on_terminal(*given, *([] if words[0] == "consume" else ["--admin", broker.admin]))
    assert_harmless(text, words)
    assert ("202e" in text) or not shows_it, text
    assert not any(line.startswith("forged") for line in text.splitlines() if "body" not in text), text


@pytest.mark.parametrize("words", OFFLINE, ids=" ".join)
def test_commands_of_a_store_steer_no_terminal(words: list[str], tmp_path: Path) -> None:
    fill(tmp_path)
    text = on_terminal(words[0], str(tmp_path), *words[1:])
    assert_harmless(text, words)
    assert not any(line.startswith("forged") for line in text.splitlines()), text


def test_a_pipe_gets_every_byte_as_it_is(broker: Broker) -> None:
    run = Quarry(broker)
    for line in run.run("browse", "orders", "--from", "earliest", "--json").rstrip("\n").split("\n"):
        assert json.loads(line)["tag"] == HOSTILE + FORGED
    assert HOSTILE in run.run("browse", "orders", "--from", "earliest")
    body = run.result("message", "show", "--topic", "orders", "--queue", 0, "--offset", 0, "--output", "-").stdout_bytes
    assert body == f"body {HOSTILE}{FORGED}".encode()


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


@contextmanager
def a_terminal() -> Iterator[io.BytesIO]:
    """Standard output and standard error of the block. No fixture: pytest sets its own when a test begins."""
    written = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        streams = [_Terminal(written, encoding="utf-8", write_through=True) for _ in range(2)]
        for name_, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(sys, name_, stream)
        yield written
        for stream in streams:
            stream.detach()


def test_what_is_said_to_a_terminal_holds_no_character_that_steers() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    with a_terminal() as terminal:
        say(every)
        say(every.encode("utf-8", "surrogatepass"), err=True)
    said = terminal.getvalue().decode()
    left = {each for each in said if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert left == {"\n", "\t"}
    for shown in "aé中\u3000\u00a0\U0001f600":
        assert shown in said


def test_escapes_are_those_of_json() -> None:
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, sys.maxunicode + 1))))
    assert json.loads(harmless(json.dumps(every, ensure_ascii=False))) == every
    assert harmless("\x1b\u202e\U000e0001\udc80") == "\\u001b\\u202e\\udb40\\udc01\\udc80"


def test_what_is_ours_may_have_colours() -> None:
    with a_terminal() as terminal:
        say("\x1b[31m", before="\x1b[32m✓\x1b[0m ")
    assert terminal.getvalue().decode() == "\x1b[32m✓\x1b[0m \\u001b[31m\n"


def test_halves_of_characters_end_no_command() -> None:
    """Names of files that are no UTF-8, and pipes that take ASCII alone."""
    for charset, shown in (("utf-8", b"a\\udc80\xc3\xa9\n"), ("ascii", b"a\\udc80\\xe9\n")):
        written = io.BytesIO()
        with pytest.MonkeyPatch.context() as patch:
            stream = io.TextIOWrapper(written, encoding=charset, write_through=True)
            patch.setattr(sys, "stdout", stream)
            say("a\udc80é")
            stream.detach()
        assert written.getvalue() == shown


def test_logs_of_offline_commands_are_harmless() -> None:
    with a_terminal() as terminal, logs_aside(logging.WARNING):
        structlog.get_logger().warning("a topic", topic=HOSTILE)
    assert not STEERS.search(terminal.getvalue().decode())


def test_wrong_words_of_a_command_line_are_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    from quarry_mq.cli.main import app

    found = CliRunner().invoke(app, ["browse", "orders", "--from", HOSTILE, "--limit", f"{HOSTILE}"])
    assert found.exit_code == 2
    assert not STEERS.search(found.output), found.output


def test_nothing_but_say_prints() -> None:
    """One place decides what a terminal may see, for every command that there is and will be."""
    printing = re.compile(
        r"\b(typer\.(echo|secho|echo_via_pager)|click\.\w*echo|sys\.(stdout|stderr)\.(write|buffer\.write))\("
    )
    allowed = {"cli/terminal/text.py"}
    found = [
        f"{name(path)}:{number}"
        for path in production_files()
        if name(path).startswith("cli/") and name(path) not in allowed
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if printing.search(line)
    ]
    assert not found, "quarry_mq.cli.terminal.text.say prints what strangers wrote without harm"
