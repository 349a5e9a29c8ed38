"""Commands that delete or move something ask before: on a terminal, and by `--yes` elsewhere."""

from __future__ import annotations

import io
import sys

import pytest
import typer
from typer.testing import CliRunner

from quarry_mq.cli.main import app
from quarry_mq.cli.terminal.confirmation import confirm
from tests.commands import commands

DELETING = frozenset({"delete", "forget", "remove", "remove-secret", "reset-offset", "expire", "rejoin"})
LOCAL = frozenset({"quarry context remove"})
"""Changes a file of the user's, which takes one line to write again."""
WORDS = (
    ("topic", "delete", "orders"),
    ("group", "delete", "billing"),
    ("group", "forget", "billing", "--topic", "orders"),
    ("group", "reset-offset", "billing", "--topic", "orders", "--to", "latest"),
    ("lite", "delete", "sessions", "one"),
    ("user", "delete", "someone"),
    ("user", "remove-secret", "someone", "1"),
    ("acl", "remove", "someone", "topic:orders"),
    ("cluster", "remove", "quarry-1"),
    ("cluster", "rejoin", "quarry-1"),
    ("expire",),
)


class _Typed(io.StringIO):
    """A typed text is the stream of a terminal."""

    def isatty(self) -> bool:
        return True


ASKING_OTHERWISE = {"quarry bench", "quarry replica promote", "quarry replica seed"}
"""Commands that do not ask about data of a live broker; see tests/cli/test_replica.py and tests/cli/test_bench.py."""


def _terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> _Typed:
    """Return standard error, on which the question is. No fixture: pytest replaces both streams before the test."""
    shown = _Typed()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdin", _Typed(answer))
    return shown


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_without_a_terminal_it_wants_yes(words: tuple[str, ...]) -> None:
    """No broker is asked: none runs at this address."""
    done = CliRunner().invoke(app, [*words, "--admin", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert "no answer" not in done.stderr
    assert "no answer" in CliRunner().invoke(app, [*words, "--yes", "--admin", "127.0.0.1:1"]).stderr


def test_every_command_that_deletes_has_the_option() -> None:
    deleting = {path for path, _ in commands() if path.rpartition(" ")[2] in DELETING} - LOCAL
    assert deleting == {path for path, command in commands() if _asks(command)} - ASKING_OTHERWISE
    assert deleting == {" ".join(["quarry", *words[: 1 if words == ("expire",) else 2]]) for words in WORDS}


def _asks(command: typer.core.TyperCommand) -> bool:
    return any("--yes" in each.opts for each in command.params)


@pytest.mark.parametrize("answer", ["y\n", "Yes\n", " y \n"])
def test_a_person_who_agrees(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = _terminal(monkeypatch, answer)
    confirm("delete the topic orders", yes=False, told=lambda: {"dryRun": True, "messages": 12, "groups": ["a", "b"]})
    assert terminal.getvalue() == "messages  12\ngroups    a, b\nDelete the topic orders? [y/N] "


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yess\n"])
def test_a_person_who_does_not(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = _terminal(monkeypatch, answer)
    with pytest.raises(typer.Exit) as ended:
        confirm("delete the topic orders", yes=False)
    assert ended.value.exit_code == 2
    assert terminal.getvalue().endswith("nothing was changed\n")


def test_a_name_steers_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _terminal(monkeypatch, "y\n")
    confirm("delete the topic a\x1b[2J", yes=False)
    assert "\x1b" not in terminal.getvalue()
