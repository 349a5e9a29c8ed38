"""`quarry console`: the pages for a broker that is elsewhere, by a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.console.browser import Browser, broker_with_console
from tests.console.endless import console_before
from tests.console.test_login import CHIEF, OUTSIDER, make_users, secret_of
from tests.e2e.broker import PROJECT, Broker, clean_environment, quarry, until

GET_BROKER = "AdminService/GetBroker"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("elsewhere")
    made, _ = broker_with_console(directory, {**make_users(directory / "store"), "network.console": "off"})
    try:
        made.start()
        assert "console" not in made.words()
        yield made
        made.stop()
    finally:
        made.close()


@pytest.fixture
def contexts(broker: Broker, tmp_path: Path) -> Path:
    secret, file = tmp_path / "secret", tmp_path / "contexts.toml"
    secret.write_text(secret_of(CHIEF))
    secret.chmod(0o600)
    file.write_text(
        f'[there]\nadmin = "{broker.admin}"\nuser = "{CHIEF}"\nsecret_file = "secret"\n'
        f'[plain]\nadmin = "{broker.admin}"\n'
    )
    return file


@contextmanager
def console(contexts: Path, context: str, *options: str) -> Iterator[str]:
    """Its URL; it ends well at Ctrl-C."""
    words = [sys.executable, "-m", "quarry_mq.cli.main", "--context", context, "console", *options]
    environment = {**clean_environment(), "QUARRY_CONTEXTS": str(contexts)}
    with subprocess.Popen(
        words, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
            assert process.returncode == 0, errors
            assert "Traceback" not in errors
        finally:
            process.kill()


def test_who_opens_it_logs_in(contexts: Path) -> None:
    with console(contexts, "there") as url:
        assert url.startswith("http://127.0.0.1:")
        browser = Browser(url.removeprefix("http://").rstrip("/"))
        assert browser.get("/").status == 200
        assert browser.get("/api/session").fields["needsLogin"] is True
        assert browser.call(GET_BROKER).status == 401, "the context's user is not everybody's"
        assert browser.log_in(OUTSIDER, "not-the-secret-0001").status == 401
        assert browser.log_in(OUTSIDER, secret_of(OUTSIDER)).status == 204
        assert browser.call(GET_BROKER).status == 403
        assert browser.get("/", Host="evil.example").status == 403


def test_as_the_context_s_user_it_is_opened_by_its_link(contexts: Path) -> None:
    """Others on this machine reach the port, too."""
    with console(contexts, "there", "--as-context-user") as url:
        address, _, path = url.removeprefix("http://").partition("/")
        assert Browser(address).call(GET_BROKER).status == 401
        browser = Browser(address)
        assert browser.get(f"/{path}").status == 303
        assert browser.get("/api/session").fields["user"] == CHIEF
        assert browser.call(GET_BROKER).fields["name"] == "quarry"


@pytest.mark.slow
def test_what_cannot_be_is_told_in_one_line(contexts: Path, broker: Broker) -> None:
    environment = {"QUARRY_CONTEXTS": str(contexts)}
    port = broker.admin.rpartition(":")[2]
    for words, reason in (
        (("--context", "plain", "console", "--as-context-user"), "needs a context that names a user"),
        (("--context", "plain", "console", "--port", port), f"cannot listen on 127.0.0.1:{port}"),
    ):
        done = quarry(*words, environment=environment)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert reason in line


@pytest.mark.slow
def test_a_broker_that_asks_who_calls_after_a_restart_is_understood(tmp_path: Path) -> None:
    asking = {**make_users(tmp_path / "store"), "network.console": "off"}
    broker, _ = broker_with_console(tmp_path, asking)
    try:
        broker.start(settings={"security.authentication": False, "security.authorization": False})
        with console_before(broker.admin, needs_login=None) as browser:
            assert browser.get("/api/session").fields["needsLogin"] is False
            assert browser.call(GET_BROKER).status == 200
            broker.restart()
            until(lambda: browser.call(GET_BROKER).status == 401, "it is no longer enough to call")
            assert browser.get("/api/session").fields["needsLogin"] is True
            assert browser.log_in(CHIEF, secret_of(CHIEF)).status == 204
            assert browser.call(GET_BROKER).status == 200
    finally:
        broker.close()
