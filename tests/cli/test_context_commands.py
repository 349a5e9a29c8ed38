"""`quarry context`: the contexts file is read and written, and no secret is ever shown."""

from __future__ import annotations

import json
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from quarry_mq.cli.context_file import FILE_VARIABLE, NAME_VARIABLE
from quarry_mq.cli.main import app
from tests.e2e.broker import Broker

SECRET = "kept-to-itself"


class Contexts:
    """A contexts file that is not there yet, and the commands over it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config" / "contexts.toml"

    def result(self, *words: object, chosen: str | None = None) -> Result:
        environment = {FILE_VARIABLE: str(self.file), NAME_VARIABLE: chosen}
        result = CliRunner().invoke(app, [*map(str, words)], env=environment)
        assert SECRET not in result.output
        return result

    def rows(self, *words: object, status: int = 0, chosen: str | None = None) -> list[dict[str, Any]]:
        result = self.result("context", *words, "--json", chosen=chosen)
        assert result.exit_code == status, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def refusal(self, *words: object) -> str:
        result = self.result("context", *words)
        assert result.exit_code == 2, result.output
        return result.stderr


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    return Contexts(tmp_path)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("context-commands")
    broker = Broker(directory / "store", logs=directory / "logs")
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_contexts_life(contexts: Contexts, tmp_path: Path) -> None:
    assert contexts.rows("list") == []
    secret = tmp_path / "a secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    (made,) = contexts.rows("add", "prod", "--admin", "a:1", "--user", "me", "--secret-file", secret)
    assert (made["user"], made["secretFile"], made["problem"]) == ("me", str(secret), None)
    assert (mode(contexts.file), mode(contexts.file.parent)) == (0o600, 0o700)
    contexts.file.chmod(0o640)
    contexts.rows("add", "my test", "--endpoint", "b:2", "--tls")
    assert mode(contexts.file) == 0o640, "as it was"
    assert [(each["name"], each["tls"]) for each in contexts.rows("list")] == [("prod", False), ("my test", True)]
    assert contexts.rows("show", chosen="my test")[0]["endpoint"] == "b:2"
    secret.chmod(0o644)
    assert "chmod 600" in contexts.rows("show", "prod", status=1)[0]["problem"]
    contexts.rows("remove", "my test")
    assert list(tomllib.loads(contexts.file.read_text())) == ["prod"]
    assert sorted(each.name for each in contexts.file.parent.iterdir()) == ["contexts.toml"]


def test_what_others_wrote_into_the_file_stays(contexts: Contexts) -> None:
    contexts.file.parent.mkdir()
    contexts.file.write_text(
        '# mine\n[one] # first\nadmin = "a:1"\n\n["two"]\nadmin = "b:2"\n# of three\n[three]\nadmin = "c:3"\n'
    )
    contexts.rows("use", "three")
    contexts.rows("remove", "two")
    assert (
        contexts.file.read_text()
        == 'current = "three"\n# mine\n[one] # first\nadmin = "a:1"\n\n# of three\n[three]\nadmin = "c:3"\n'
    )
    contexts.rows("remove", "three")
    assert contexts.file.read_text() == '# mine\n[one] # first\nadmin = "a:1"\n\n# of three\n'
    contexts.file.write_text('one.admin = "a:1"\n')
    assert "this command cannot edit" in contexts.refusal("remove", "one")


def test_the_current_context_is_taken_where_none_is_named(contexts: Contexts, broker: Broker) -> None:
    contexts.rows("add", "here", "--admin", broker.admin, "--endpoint", broker.endpoint)
    contexts.rows("add", "away", "--admin", "127.0.0.1:1")
    assert contexts.rows("use", "here") == [{"current": "here"}]
    assert [each["isCurrent"] for each in contexts.rows("list")] == [True, False]
    assert json.loads(contexts.result("broker", "--json").stdout)["advertised"] == broker.endpoint
    assert contexts.result("broker", chosen="away").stderr.startswith("127.0.0.1:1: no answer")
    assert contexts.result("--context", "away", "broker").stderr.startswith("127.0.0.1:1: no answer")
    assert contexts.rows("use", "--none") == [{"current": None}]
    assert "current" not in contexts.file.read_text()
    assert "NAME or --none" in contexts.refusal("use")


def test_a_context_is_tested(contexts: Contexts, broker: Broker) -> None:
    contexts.rows("add", "here", "--admin", broker.admin, "--endpoint", broker.endpoint)
    admin, messaging = contexts.rows("test", "here")
    assert (admin["isFine"], messaging["isFine"], messaging["seen"]) == (True, True, "reached")
    assert "version" in admin["seen"]
    contexts.rows("add", "away", "--admin", "127.0.0.1:1")
    assert contexts.rows("test", "away", status=1)[0]["seen"] == "no answer"
    contexts.rows("add", "short", "--admin", broker.admin)
    assert [each["address"] for each in contexts.rows("test", "short")] == [broker.admin, broker.endpoint]


def test_the_admin_address_is_enough(contexts: Contexts, broker: Broker) -> None:
    contexts.rows("add", "here", "--admin", broker.admin)
    ways: list[tuple[tuple[str, ...], str | None]] = [
        (("--context", "here", "produce", "orders", "x"), None),
        (("--context", broker.admin, "produce", "orders", "x"), None),
        (("produce", "orders", "x"), broker.admin),
        (("produce", "orders", "x", "--admin", broker.admin), None),
        (("consume", "orders", "--limit", "1", "--admin", broker.admin), None),
        (("ping", "--count", "1", "--admin", broker.admin), None),
    ]
    for words, chosen in ways:
        done = contexts.result(*words, chosen=chosen)
        assert done.exit_code == 0, (words, done.output)
    told = contexts.result("produce", "orders", "x", "--admin", "127.0.0.1:1").stderr
    assert told.startswith("127.0.0.1:1: no answer from a broker")
    told = contexts.result("consume", "order", "--admin", broker.admin).stderr
    assert "did you mean orders?" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("add", "here", "--admin", "nowhere"), "'nowhere' is not host:port"),
        (("add", "here", "--admin", "a:1", "--user", "me"), "needs secret_file"),
        (("add", "here", "--user", "me", "--secret-file", "/nowhere/at/all"), "/nowhere/at/all: No such file"),
        (("add", "current", "--admin", "a:1"), "context 'current' already exists"),
        (("show", "ghost"), "no context 'ghost'"),
        (("show",), "no context is selected"),
        (("use", "ghost"), "no context 'ghost'"),
        (("remove", "ghost"), "no context 'ghost'"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(contexts: Contexts, words: tuple[str, ...], says: str) -> None:
    assert says in contexts.refusal(*words)
    assert not contexts.file.exists()
    assert not contexts.file.parent.exists() or not any(contexts.file.parent.iterdir())
