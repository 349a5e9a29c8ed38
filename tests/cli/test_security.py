"""The commands for users and rules: before a broker runs, against one, and what is left on disk behind it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.security.model import SECRET_TEXT, UserKind
from quarry_mq.store.security.sealer import Sealer, read_keys
from quarry_mq.store.tools.users import users_of
from tests.cli.online_runner import Quarry
from tests.e2e.broker import SMALL_SEGMENTS, Broker, quarry
from tests.users.tables import SECRET


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "security.key"
    Quarry(None).run("security", "new-key", path)
    return path


def stored_secret(store: Path, key_file: Path, name: str) -> str:
    with users_of(PosixDisk(), store, Sealer(read_keys(key_file)), SystemClock()) as users:
        user = users.get(name)
    assert user is not None
    assert user.kind is UserKind.SUPER
    (secret,) = user.secrets
    return secret.text


# Before a broker runs.


def test_a_new_key_is_for_its_owner_only_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "security.key"
    assert Quarry(None).row("security", "new-key", path) == {"file": str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    assert len(read_keys(path)) == 1
    assert "File exists" in Quarry(None).run("security", "new-key", path, status=2)
    assert path.read_bytes() == before


def test_the_first_administrator_of_a_store_that_does_not_exist_yet(tmp_path: Path, key_file: Path) -> None:
    store, commands = tmp_path / "store", Quarry(None)
    made = commands.row("user", "bootstrap", store, "admin", "--key-file", key_file)
    assert made["name"] == "admin"
    assert SECRET_TEXT.fullmatch(made["secret"])
    assert stored_secret(store, key_file, "admin") == made["secret"]
    refused = commands.run("user", "bootstrap", store, "other", "--key-file", key_file, status=2)
    assert "there is a super user already: admin" in refused
    forced = commands.run("user", "bootstrap", store, "other", "--key-file", key_file, "--force")
    assert stored_secret(store, key_file, "other") in forced


def test_who_lost_the_secret_or_the_key_gets_back_in(tmp_path: Path, key_file: Path) -> None:
    store, commands, text = tmp_path / "store", Quarry(None), tmp_path / "secret"
    text.write_text(f"{SECRET}\n")
    commands.run("user", "bootstrap", store, "admin", "--key-file", key_file)
    other = tmp_path / "other.key"
    commands.run("security", "new-key", other)
    shown = commands.run("user", "bootstrap", store, "admin", "--key-file", other, "--secret-file", text, "--force")
    assert SECRET not in shown
    assert stored_secret(store, other, "admin") == SECRET


def test_a_bootstrap_that_cannot_be_says_why_and_makes_nothing(tmp_path: Path, key_file: Path) -> None:
    store, commands, text = tmp_path / "store", Quarry(None), tmp_path / "secret"
    missing = commands.run("user", "bootstrap", store, "admin", "--key-file", tmp_path / "none", status=2)
    assert f"key file {tmp_path / 'none'}: No such file or directory" in missing
    key_file.chmod(0o644)
    assert "users other than its owner" in commands.run(
        "user", "bootstrap", store, "admin", "--key-file", key_file, status=2
    )
    key_file.chmod(0o600)
    assert not store.exists()
    text.write_text("too short")
    said = commands.run("user", "bootstrap", store, "admin", "--key-file", key_file, "--secret-file", text, status=2)
    assert "12 to 256 printable" in said
    assert "too short" not in said
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "letter.txt").touch()
    assert "neither a store nor empty" in commands.run(
        "user", "bootstrap", strange, "a", "--key-file", key_file, status=2
    )
    assert [path.name for path in strange.iterdir()] == ["letter.txt"]


# With a broker.


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """A broker on a store whose administrator was there first, and its key file."""
    directory = tmp_path_factory.mktemp("security")
    key_file = directory / "security.key"
    Quarry(None).run("security", "new-key", key_file)
    Quarry(None).run("user", "bootstrap", directory / "store", "admin", "--key-file", key_file)
    environment = {**SMALL_SEGMENTS, "QUARRY_SECURITY_KEY_FILE": str(key_file)}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    try:
        yield broker.start(), key_file
        broker.stop()
    finally:
        broker.close()


@pytest.fixture
def live(administered: tuple[Broker, Path]) -> Quarry:
    return Quarry(administered[0])


def test_the_administrator_is_there_when_the_broker_starts(live: Quarry) -> None:
    admin = live.row("user", "show", "admin")
    assert (admin["kind"], admin["enabled"], [each["number"] for each in admin["secrets"]]) == ("super", True, [1])


def test_nothing_is_made_beside_a_broker(administered: tuple[Broker, Path]) -> None:
    broker, key_file = administered
    said = Quarry(None).run("user", "bootstrap", broker.store, "late", "--key-file", key_file, "--force", status=2)
    assert "a broker is running on this store; ask it with `quarry user`" in said


def test_a_users_life(live: Quarry, tmp_path: Path) -> None:
    made = live.row("user", "create", "life", "--super", "--certificate", "CN=life,O=Shop")
    assert SECRET_TEXT.fullmatch(made["secret"])
    shown = live.row("user", "show", "life")
    assert {**shown, "secret": made["secret"]} == made
    assert (shown["kind"], shown["certificates"]) == ("super", ["CN=life,O=Shop"])
    changed = live.row("user", "update", "life", "--kind", "normal", "--disable", "--no-certificates")
    assert (changed["kind"], changed["enabled"], changed["certificates"]) == ("normal", False, [])
    assert live.row("user", "update", "life", "--enable") == {**changed, "enabled": True}
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    assert live.row("user", "add-secret", "life", "--secret-file", file) == {"name": "life", "number": 2}
    assert live.row("user", "remove-secret", "--yes", "life", 1) == {"name": "life", "removed": 1}
    assert "add another one first" in live.run("user", "remove-secret", "--yes", "life", 2, status=2)
    assert live.row("user", "add-secret", "life")["number"] == 3
    assert live.rows("user", "list", "--prefix", "lif")[0]["name"] == "life"
    assert live.row("user", "reseal")["resealed"] >= 3
    told = live.row("user", "delete", "life", "--dry-run")
    assert (told["user"], told["secrets"], told["rules"]) == ("life", 2, 0)
    assert live.row("user", "delete", "--yes", "life") == {"deleted": "life"}
    assert live.run("user", "show", "life", status=2) == "no user life\n"


def test_users_for_people(live: Quarry) -> None:
    assert "\nsecret        " in live.run("user", "create", "people")
    listed = live.run("user", "list", "--prefix", "people").splitlines()
    assert listed[0].split() == ["NAME", "KIND", "ENABLED", "SECRETS", "CERTIFICATES"]
    assert listed[1].split() == ["people", "normal", "yes", "1", "-"]


def test_options_that_do_not_go_together_are_refused(live: Quarry, tmp_path: Path) -> None:
    assert "not allowed" in live.run("user", "create", "x", "--no-secret", "--secret-file", tmp_path / "x", status=2)
    assert "not allowed" in live.run("user", "update", "x", "--certificate", "CN=x", "--no-certificates", status=2)
    assert "No such file" in live.run("user", "create", "x", "--secret-file", tmp_path / "x", status=2)


def test_rules_are_set_shown_tested_and_removed(live: Quarry) -> None:
    live.run("user", "create", "ruled", "--no-secret", "--certificate", "CN=ruled")
    allowed = live.row("acl", "allow", "ruled", "topic:orders-*", "pub", "sub", "--address", "10.0.0.0/8")
    assert allowed == {
        "user": "ruled",
        "resource": "topic:orders-*",
        "decision": "allow",
        "actions": ["pub", "sub"],
        "sources": ["10.0.0.0/8"],
    }
    denied = live.row("acl", "deny", "ruled", "topic:orders-secret", "sub")
    assert live.rows("acl", "show", "ruled") == live.rows("acl", "list", "--prefix", "ruled") == [allowed, denied]
    question = ("acl", "test", "ruled", "sub", "topic:orders-secret", "--address", "10.1.1.1")
    assert live.row(*question, status=1) == {
        "decision": "deny",
        "reason": "the rule of topic:orders-secret decides",
        "rule": denied,
    }
    assert live.row("acl", "remove", "--yes", "ruled", "topic:orders-secret") == {
        "user": "ruled",
        "removed": "topic:orders-secret",
    }
    assert live.row(*question)["decision"] == "allow"
    assert live.row(*question[:-2], status=1)["reason"] == "no rule matches"
    assert "topic:orders-*" in live.run("acl", "show", "ruled")
    assert "no rule of topic:orders-* that says deny" in live.run(
        "acl", "remove", "--yes", "ruled", "topic:orders-*", "--decision", "deny", status=2
    )
    assert "no user ghost" in live.run("acl", "allow", "ghost", "*", "pub", status=2)
    assert "one of pub, sub" in live.run("acl", "allow", "ruled", "*", "write", status=2)


def test_secrets_are_in_no_file_and_no_export(administered: tuple[Broker, Path], live: Quarry, tmp_path: Path) -> None:
    broker, _ = administered
    secrets = [live.row("user", "create", f"leaky-{number}")["secret"] for number in range(2)]
    file = tmp_path / "secret"
    file.write_text(SECRET)
    live.run("user", "create", "leaky", "--secret-file", file)
    live.run("topic", "create", "exported")
    Quarry(None).run("produce", "exported", "hello", "--endpoint", broker.endpoint)
    broker.stop()
    for form in ("json", "rocksdb"):
        Quarry(None).run("export-metadata", broker.store, "--output", tmp_path / form, "--format", form)
    logs = broker.store.parent / "logs"
    files = [
        path for folder in (broker.store, logs, tmp_path / "json", tmp_path / "rocksdb") for path in folder.rglob("*")
    ]
    contents = {path: path.read_bytes() for path in files if path.is_file() and path.parent.name != "commitlog"}
    assert [path for path, content in contents.items() for text in (*secrets, SECRET) if text.encode() in content] == []
    named = {path for path, content in contents.items() if b"leaky" in content}
    assert named
    # the log tells who made which user
    assert {path.parent for path in named} == {broker.store / "quarry", logs}
    broker.start()


def test_a_broker_without_the_key_starts_and_names_the_setting(
    administered: tuple[Broker, Path], live: Quarry, tmp_path: Path
) -> None:
    """Nobody has to authenticate here: what needs no secret goes on."""
    broker, _ = administered
    other = tmp_path / "other.key"
    Quarry(None).run("security", "new-key", other)
    broker.stop()
    broker.start(settings={"security.key_file": other})
    assert live.row("user", "show", "admin")["kind"] == "super"
    assert live.run("user", "reseal", status=2).endswith(
        "sealed with a key that is not in security.key_file (or security.key)\n"
    )
    broker.stop()
    broker.start()


def test_a_broker_whose_key_file_is_wrong_says_so_in_one_line(tmp_path: Path, key_file: Path) -> None:
    key_file.chmod(0o640)
    serve = ("serve", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0")
    ports = ("--admin", "127.0.0.1:0", "--http", "127.0.0.1:0")
    done = quarry(*serve, *ports, environment={"QUARRY_SECURITY_KEY_FILE": str(key_file)})
    assert done.returncode == 2
    assert f"key file {key_file}: users other than its owner may read it" in done.stderr
    assert not (tmp_path / "store").exists()
