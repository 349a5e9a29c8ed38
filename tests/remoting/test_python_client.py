"""The client of RocketMQ 4 for Python, unmodified: `rocketmq` 0.4.4, which brings RocketMQ's client for C++ with it.

The package has the name of the client of RocketMQ 5, so it has a folder and a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.e2e.accounts import make_accounts
from tests.e2e.broker import DISK_OF_THE_TESTS, Broker, environment_of
from tests.e2e.clients import Login
from tests.remoting.client import prepare

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the client's library is for Linux on x86-64"
    ),
]

PACKAGE: Final = "rocketmq==0.4.4"
PROGRAMS: Final = Path(__file__).parent / "python_programs.py"
GROUPS: Final = ("push", "ordered", "tags", "retry", "pull", "delay")
SENT: Final = range(21)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), PACKAGE]
    subprocess.run(pip, check=True, timeout=120)
    return folder


@contextmanager
def served(directory: Path, settings: dict[str, object], user: tuple[str, str] | None = None) -> Iterator[str]:
    """Run a broker, and give its name server address."""
    names = f"127.0.0.1:{free_ports(1)[0]}"
    environment = {**DISK_OF_THE_TESTS, **environment_of({"remoting.names_listen": names, **settings})}
    broker = Broker(directory / "store", logs=directory / "logs", environment=environment)
    try:
        broker.start()
        prepare(names, ["all", "late"], [f"python-{group}" for group in GROUPS], queues=4, user=user)
        yield names
    finally:
        broker.close()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server address of a broker."""
    with served(tmp_path_factory.mktemp("broker"), {}) as names:
        yield names


def run(package: Path, names: str, program: str, topic: str, *keys: str) -> dict[str, Any]:
    """Run one of the programs; return what it prints."""
    home = package.parent  # the client writes its log there
    done = subprocess.run(
        [sys.executable, str(PROGRAMS), names, program, topic, *keys],
        env={**os.environ, "PYTHONPATH": str(package), "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def assert_equal_to_what_was_sent(found: list[list[Any]], numbers: range) -> None:
    wanted = [[f"body {n}", f"key-{n}", "odd" if n % 2 else "even", str(n)] for n in numbers]
    assert sorted(each[:4] for each in found) == sorted(wanted)


def test_messages_are_sent_in_every_way_and_received_by_every_consumer(package: Path, names: str) -> None:
    sent = run(package, names, "sends", "all")
    assert sent["statuses"] == [0] * 15
    assert sent["asynchronous"] == 1

    assert_equal_to_what_was_sent(run(package, names, "push", "all")["found"], SENT)
    ordered = run(package, names, "push_in_order", "all")["found"]
    assert_equal_to_what_was_sent(ordered, SENT)
    queue_of = {int(number): queue for _, _, _, number, queue in ordered}
    assert len({queue_of[number] for number in range(11, 15)}) == 1
    in_order = [int(number) for _, _, _, number, _ in ordered if 11 <= int(number) < 15]
    assert in_order == [11, 12, 13, 14]
    assert_equal_to_what_was_sent(run(package, names, "push_by_tag", "all")["found"], range(1, 21, 2))
    assert sorted(run(package, names, "pull", "all")["found"]) == sorted(f"body {number}" for number in SENT)
    assert run(package, names, "retry", "all")["times"] == [0, 1]


def test_broadcasting_consumers_get_every_message(package: Path, names: str) -> None:
    assert run(package, names, "broadcast", "everybody")["all"] == [True, True]


def test_a_delay_level_is_kept(package: Path, names: str) -> None:
    assert 4.5 < run(package, names, "delay", "late")["seconds"] < 30


def test_signed_requests_are_let_in_and_others_are_not(package: Path, tmp_path: Path) -> None:
    user = ("administrator", "secret-of-the-administrator")
    accounts = make_accounts(tmp_path / "store", administrator=Login(*user))
    with served(tmp_path, accounts.settings, user) as names:
        assert run(package, names, "sends", "all", *user)["statuses"] == [0] * 15
        assert_equal_to_what_was_sent(run(package, names, "push", "all", *user)["found"], SENT)
        with pytest.raises(AssertionError, match="ProducerSendSyncFailed"):
            run(package, names, "sends", "all", user[0], "another-secret-0001")
