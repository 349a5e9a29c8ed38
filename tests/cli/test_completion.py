"""`quarry completion`, in the shells that are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quarry_mq.cli.completion import attach, kind_of
from quarry_mq.cli.main import app
from tests.cli.online_runner import Quarry
from tests.commands import commands
from tests.e2e.broker import PROJECT, Broker, clean_environment
from tests.terminal import Terminal

BASH = r"""
source <(quarry completion bash)
COMP_LINE=$1 COMP_POINT=${#1}
_quarry_completion quarry
printf '%s\n' "${COMPREPLY[@]}"
"""
ZSH = r"""
autoload -Uz compinit && compinit -u -d "$HOME/zcompdump"
source <(quarry completion zsh)
_arguments() { print -r -- "$@" }
_files() { }
words=(${(s: :)1}); [[ $1 == *' ' ]] && words+=('')
CURRENT=$#words
_quarry
"""
FISH = "quarry completion fish | source; complete --do-complete $argv[1]"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("completion")
    broker = Broker(directory / "store", logs=directory / "logs")
    try:
        quarry = Quarry(broker.start())
        for name in ("orders", "orders-eu", "payments"):
            quarry.run("topic", "create", name)
        quarry.run("group", "create", "billing")
        yield broker
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def environment(tmp_path: Path, broker: Broker) -> dict[str, str]:
    """With `quarry` on the path, and a context `here` for the broker."""
    program = tmp_path / "bin" / "quarry"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(PROJECT)!r})\n"
        "from quarry_mq.cli.main import main\nmain()\n"
    )
    program.chmod(0o755)
    contexts = tmp_path / "contexts.toml"
    contexts.write_text(f'[here]\nadmin = "{broker.admin}"\n[hereafter]\nadmin = "127.0.0.1:1"\n["$(evil)"]\n')
    environment = clean_environment() | {"QUARRY_CONTEXTS": str(contexts), "HOME": str(tmp_path)}
    return environment | {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def completed(shell: str, script: str, line: str, environment: dict[str, str]) -> list[str]:
    words = {"bash": ["--norc", "-c", script, "bash", line], "zsh": ["-f", "-c", script, "zsh", line]}
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    done = subprocess.run(
        [program, *words.get(shell, ["--no-config", "-c", script, line])],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def asked(line: str, environment: dict[str, str]) -> list[str]:
    """What `quarry` tells bash, in this process."""
    words = line.split(" ")
    told = {"_QUARRY_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(app, [], prog_name="quarry", env=environment | told)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("quarry top", "top topic"),
        ("quarry topic r", "readers route"),
        ("quarry topic create x --type f", "fifo"),
        ("quarry tail --from la", "latest"),
        ("quarry topic list --pre", "--prefix"),
        ("quarry --context ", "here hereafter"),
        ("quarry --context here topic show or", "orders orders-eu"),
        ("quarry --context here message show --topic or", "orders orders-eu"),
        ("quarry --context here consume pay", "payments"),
        ("quarry --context here lag ", "billing"),
        ("quarry --context here settings get limits.topics_per_u", "limits.topics_per_user"),
        ("quarry --context here acl allow shop t", "topic:"),
        ("quarry --context here acl allow shop topic:ord", "topic:orders topic:orders-eu"),
        ("quarry --context here acl allow shop topic:orders s", "sub"),
        ("quarry --context hereafter topic show or", ""),
        ("quarry topic create or", ""),
        ("quarry call Admin/GetTopicR", "Admin/GetTopicRoute"),
    ],
)
def test_a_line_is_completed(line: str, expected: str, environment: dict[str, str]) -> None:
    assert asked(line, environment) == expected.split()


def test_bash_completes_after_and_within_words_with_colons(broker: Broker, environment: dict[str, str]) -> None:
    assert completed("bash", BASH, f"quarry topic show --admin {broker.admin} or", environment) == [
        "orders",
        "orders-eu",
    ]
    line = "quarry --context here acl allow shop topic:pay"
    assert completed("bash", BASH, line, environment) == ["payments"]


@pytest.mark.slow
@pytest.mark.parametrize(("shell", "script"), [("zsh", ZSH), ("fish", FISH)])
def test_other_shells_complete(shell: str, script: str, environment: dict[str, str]) -> None:
    def words(line: str) -> str:
        return " ".join(completed(shell, script, line, environment))

    assert "readers" in words("quarry topic r")
    assert "orders-eu" in words("quarry --context here topic show or")
    assert "--prefix" in words("quarry topic list --pre")
    contexts = words("quarry --context ")
    assert "hereafter" in contexts
    assert "evil" not in contexts


def test_a_person_presses_the_key(tmp_path: Path, environment: dict[str, str]) -> None:
    with Terminal(tmp_path / "tmux") as terminal:
        terminal.run(["bash", "--norc", "-i"], environment | {"PS1": "ready> "})
        terminal.until(lambda lines: "ready>" in lines[0], "a prompt")
        terminal.press("source <(quarry completion bash); echo known", "Enter")
        terminal.until(lambda lines: "known" in lines, "the script")
        terminal.press("quarry --context here topic show pay", "Tab")
        terminal.until(
            lambda lines: any(line.endswith("topic show payments") for line in map(str.rstrip, lines)), "the name"
        )
        terminal.press("Enter")
        terminal.until(lambda lines: any(line.startswith("read queues") for line in lines), "the topic")


def test_a_broker_that_is_silent_is_not_waited_for(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        Path(environment["QUARRY_CONTEXTS"]).write_text(f'[silent]\nadmin = "127.0.0.1:{silent.getsockname()[1]}"\n')
        begun_s = time.monotonic()
        assert asked("quarry --context silent topic show o", environment) == []
        assert time.monotonic() - begun_s < 60


def test_names_are_completed_wherever_they_are_asked_for() -> None:
    known = {path.removeprefix("quarry "): command for path, command in commands()}

    def kinds(path: str) -> set[str | None]:
        return {kind_of(path, param) for param in known[path].params}

    for path, command in known.items():
        spelled = {each for param in command.params for each in param.opts}
        assert "--topic" not in spelled or "topic" in kinds(path), path
        assert "--group" not in spelled or "group" in kinds(path), path
    assert "topic" in kinds("topic delete") & kinds("produce") & kinds("lite list")
    assert "group" in kinds("group delete") & kinds("lag") & kinds("dlq resend")
    assert "topic" not in kinds("topic create")


def test_a_completion_that_fails_is_silent() -> None:
    quarry: Any = typer.main.get_command(app)
    topic = quarry.load("topic")
    attach(topic, "topic")
    (name,) = [param for param in topic.commands["show"].params if param.name == "name"]
    assert name.shell_complete(object(), "") == []
