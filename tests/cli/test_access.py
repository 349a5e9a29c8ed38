"""A broker that asks who calls, from the first key to the last denial, with nothing but commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quarry_mq.cli.context_file import FILE_VARIABLE
from quarry_mq.cli.main import app
from tests.cli.said import complaint, hint_in
from tests.e2e.broker import Broker, environment_of

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("access")


def quarry(folder: Path, *words: str, status: int = 0) -> str:
    result = RUNNER.invoke(app, words, env={FILE_VARIABLE: str(folder / "contexts.toml")})
    assert result.exit_code == status, result.output
    return result.stdout if status == 0 else complaint(result.stderr).strip()


def hint(folder: Path, *words: str) -> str:
    """What a command that could not run says to try."""
    result = RUNNER.invoke(app, words, env={FILE_VARIABLE: str(folder / "contexts.toml")})
    assert result.exit_code == 2, result.output
    return hint_in(result.stderr)


def as_user(folder: Path, broker: Broker, name: str, secret: str) -> None:
    """A context of the user's name."""
    file = folder / f"{name}.secret"
    file.write_text(secret)
    file.chmod(0o600)
    with (folder / "contexts.toml").open("a") as contexts:
        contexts.write(
            f'[{name}]\nendpoint = "{broker.endpoint}"\nadmin = "{broker.admin}"\n'
            f'user = "{name}"\nsecret_file = "{file.name}"\n'
        )


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[Broker]:
    """With an administrator, `admin`."""
    quarry(folder, "security", "new-key", str(folder / "key"))
    store = folder / "store"
    settings = {
        "store.segment_size": 16 * 1024 * 1024,
        "security.authentication": True,
        "security.authorization": True,
        "security.key_file": folder / "key",
        "log.audit_file": folder / "audit.log",
    }
    made = quarry(folder, "user", "bootstrap", str(store), "admin", "--key-file", str(folder / "key"), "--json")
    broker = Broker(store, logs=folder / "logs", environment=environment_of(settings))
    as_user(folder, broker, "admin", json.loads(made)["secret"])
    try:
        yield broker.start()
        broker.stop()
    finally:
        broker.close()


def test_users_get_what_they_are_given_and_nothing_else(broker: Broker, folder: Path) -> None:
    made = json.loads(quarry(folder, "--context", "admin", "user", "create", "shop", "--json"))
    as_user(folder, broker, "shop", made["secret"])
    quarry(folder, "--context", "admin", "topic", "create", "orders")
    denied = quarry(folder, "--context", "shop", "produce", "orders", "hello", status=2)
    assert denied.endswith("UNAUTHORIZED: user shop may not pub on topic orders (has no permission to access)")
    quarry(folder, "--context", "admin", "acl", "allow", "shop", "topic:orders", "pub", "sub")
    quarry(folder, "--context", "admin", "acl", "allow", "shop", "group:quarry-cli", "sub")
    quarry(folder, "--context", "shop", "produce", "orders", "hello")
    assert "hello" in quarry(folder, "--context", "shop", "consume", "orders", "--limit", "1")
    denied = quarry(folder, "--context", "shop", "topic", "delete", "--yes", "orders", status=2)
    assert denied.endswith("permission denied: user shop may not delete on topic orders")
    assert "only super users" in quarry(folder, "--context", "shop", "user", "list", status=2)


def test_who_names_no_user_is_told_so(broker: Broker, folder: Path) -> None:
    assert "UNAUTHORIZED: the call is not signed" in quarry(
        folder, "produce", "orders", "hello", "--endpoint", broker.endpoint, status=2
    )
    denied = quarry(folder, "topic", "list", "--admin", broker.admin, status=2)
    assert "unauthenticated: the call is not signed" in denied


def test_who_may_not_is_told_what_to_do(broker: Broker, folder: Path) -> None:
    made = json.loads(quarry(folder, "--context", "admin", "user", "create", "new", "--json"))
    as_user(folder, broker, "new", made["secret"])
    quarry(folder, "--context", "admin", "topic", "create", "hinted")
    for words in (("produce", "hinted", "hello"), ("topic", "delete", "--yes", "hinted"), ("broker",)):
        advice = hint(folder, "--context", "new", *words)
        allowing = advice.partition("quarry ")[2]
        assert allowing.startswith("acl allow new "), advice
        quarry(folder, "--context", "admin", *shlex.split(allowing))
        quarry(folder, "--context", "new", *words)
    assert hint(folder, "--context", "new", "user", "list").endswith("quarry user update new --kind super")
    not_signed = hint(folder, "topic", "list", "--admin", broker.admin)
    assert "--context NAME" in not_signed
    assert "new" in not_signed
    assert hint(folder.parent, "topic", "list", "--admin", broker.admin).startswith(
        "add a context with a user: quarry context add"
    )
    as_user(folder, broker, "wrong", "another-secret")
    assert "quarry context show" in hint(folder, "--context", "wrong", "topic", "list")


def test_any_call_is_signed(broker: Broker, folder: Path) -> None:
    assert "topics" in quarry(folder, "--context", "admin", "call", "AdminService/CreateTopic", '{"name": "topics"}')
    assert '"name": "topics"' in quarry(folder, "--context", "admin", "call", "AdminService/ListTopics")
    denied = quarry(folder, "call", "AdminService/GetBroker", "--admin", broker.admin, status=2)
    assert "unauthenticated: the call is not signed" in denied


def test_what_was_changed_and_denied_is_in_the_audit_file(broker: Broker, folder: Path) -> None:
    quarry(folder, "--context", "admin", "topic", "create", "audited")
    quarry(folder, "topic", "delete", "--yes", "audited", "--admin", broker.admin, status=2)
    lines = [json.loads(line) for line in (folder / "audit.log").read_text().splitlines()]
    seen = [(each["event"], each["method"], each["user"], each["outcome"]) for each in lines]
    assert ("admin change", "AdminService/CreateTopic", "admin", "done") in seen
    assert ("call denied", "AdminService/DeleteTopic", "-", "absent") in seen
    metrics = broker.get("/metrics")[1].splitlines()
    assert 'quarry_calls_denied_total{port="admin"} 0.0' not in metrics
    assert 'quarry_calls_denied_total{port="messaging"} 0.0' not in metrics
    assert 'quarry_authentications_total{outcome="remembered"} 0.0' not in metrics
    assert 'quarry_authentications_total{outcome="stale"} 0.0' in metrics
    assert 'quarry_authorizations_total{cached="true",decision="allow"} 0.0' not in metrics
    secret = (folder / "admin.secret").read_text()
    assert secret not in (folder / "audit.log").read_text() + broker.words()
