"""Attacks that are to use up a broker, beside an honest client, on a broker that has 1 GiB.

The broker runs in a memory cgroup of 1 GiB where one can be made, else under a limit of its data segment. The attack
and the honest client are processes of their own with addresses of their own; the attack is nice'd and keeps the pace at
which it once did harm. In turns the honest client sends alone and beside the attack; the medians of the rounds count.
Beside slow logins at the console an honest user logs in there, too.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import Any, Final, Protocol

import grpc
import pytest

from bench.raw_client import RawClient
from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.signature import signed_admin_headers
from tests.attack.conftest import SETTINGS
from tests.attack.console_user import ConsoleUser
from tests.attack.exhausting import KINDS, LARGE_TOPIC
from tests.attack.good_client import GoodClient, Pace
from tests.attack.test_floods import HOSTILE_ADDRESS
from tests.attack.wire import block, call, signed
from tests.e2e.accounts import Accounts, make_accounts
from tests.e2e.broker import PROJECT, Broker, environment_of, until
from tests.hostile.test_requests import good_request

MIB: Final = 1 << 20
LIMIT: Final = 1024 * MIB
MOST: Final = 512 * MIB
"""Memory of its own that the broker may take at any moment."""

KEPT: Final = 0.8
LATENCY_TIMES: Final = 3.0
LATENCY_LEAST_MS: Final = 10.0
"""What a 99th percentile counts as at least: below it the machine's other work is most of it."""

ROUNDS: Final = 5
TRIES: Final = 3
"""Measurements. One of them has to show the pace that is kept: the machine may do other work during the others."""

ROUND_S: Final = 3.0
LARGE_MESSAGES: Final = 40
LARGE_SIZE: Final = 900 * 1024
CGROUP: Final = Path("/sys/fs/cgroup/memory/quarry-attack")
"""Of the first version of cgroups; where only the second is there, `prlimit` stands in."""

IDLE: Final = "idle connections"
FEW_DESCRIPTORS: Final = ("prlimit", "--nofile=1024:1024", "--")
ADMIN: Final = "calls of the admin port"
CONSOLE: Final = "slow console logins"
GET_BROKER: Final = "/quarry.admin.v1.AdminService/GetBroker"

WARM_UP_S: Final = {"readers that stop": 12.0, CONSOLE: 3.0}
"""How long an attack goes on before it is looked at, where what it takes is not there at once."""

MAY_READ: Final = frozenset({"readers that stop"})
"""Attacks of a user that may do what it does."""


@contextmanager
def limited() -> Iterator[Sequence[str]]:
    """What goes before a command so that it has no more memory than `LIMIT`."""
    made = False
    with suppress(OSError):
        CGROUP.mkdir()
        made = True
        (CGROUP / "memory.limit_in_bytes").write_text(str(LIMIT))
    try:
        if made:
            yield ("sh", "-c", f'echo $$ >{CGROUP}/cgroup.procs && exec "$@"', "sh")
        else:
            yield ("prlimit", f"--data={LIMIT}", "--")
    finally:
        if made:
            until(lambda: not (CGROUP / "cgroup.procs").read_text(), "the broker has ended")
            CGROUP.rmdir()


@pytest.fixture
def console() -> str:
    """Return the address of the console whose logins are attacked."""
    (port,) = free_ports(1)
    return f"127.0.0.1:{port}"


@pytest.fixture
def guarded(tmp_path: Path, kind: str, console: str) -> Iterator[tuple[Broker, Accounts]]:
    accounts = make_accounts(tmp_path / "store")
    settings: dict[str, object] = {**SETTINGS, **accounts.settings, "delivery.new_group_start": "earliest"}
    if kind == CONSOLE:
        settings["network.console"] = console
    broker = Broker(tmp_path / "store", logs=tmp_path / "logs", environment=environment_of(settings))
    with limited() as under:
        try:
            broker.launch(under=(*under, *FEW_DESCRIPTORS) if kind == IDLE else under)
            assert broker.ready_or_ended() is None, broker.words()
            yield broker, accounts
            broker.stop()
        finally:
            broker.close()


class Memory:
    """The most that a process has had of its own, looked at twenty times a second."""

    def __init__(self, broker: Broker) -> None:
        self._status = Path(f"/proc/{broker.pid}/status")
        self._ended = Event()
        self.most = self.own()
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()

    def own(self) -> int:
        (line,) = (each for each in self._status.read_text().splitlines() if each.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            with suppress(OSError, ValueError):  # it has ended; whoever waits for it will say so
                self.most = max(self.most, self.own())

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.most


@contextmanager
def attacked(endpoint: str, kind: str, seconds: float, user: str, secret: str) -> Iterator[None]:
    arguments = [kind, endpoint, HOSTILE_ADDRESS, str(seconds), user, secret]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.attack.exhausting", *arguments], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.poll() is None, "the attack has ended before"
        finally:
            process.terminate()


def send_large_messages(broker: Broker, user: str, secret: str) -> None:
    request = good_request("SendMessage")
    request.messages[0].topic.name = LARGE_TOPIC
    request.messages[0].body = bytes(LARGE_SIZE)
    client = RawClient(broker.endpoint, 1)
    try:
        (connection,) = client.connections
        head = block("SendMessage", *signed(user, secret), client_id=b"large")
        for number in range(LARGE_MESSAGES):
            client.send(connection, call(number, head, request.SerializeToString()))
            client.read_until(lambda: client.ended > number)  # noqa: B023 - called at once
    finally:
        client.close()


def assert_known_on_the_admin_port(broker: Broker, accounts: Accounts) -> None:
    """Somebody who is known gets an answer there, be it that he may not ask."""
    headers = signed_admin_headers(
        accounts.shop.user,
        accounts.shop.secret,
        GET_BROKER,
        now_ms=int(time.time() * 1000),
        nonce=uuid.uuid4().hex,
    )
    with grpc.insecure_channel(broker.admin) as channel:
        method: Any = channel.unary_unary(GET_BROKER)
        try:
            method(b"", metadata=headers, timeout=10)
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED, error  # noqa: PT017 - either is an answer


class Honest(Protocol):
    """Somebody who keeps a pace."""

    refused: list[str]

    def send(self, seconds: float) -> Pace: ...

    def close(self) -> None: ...


def all_send(honest: Sequence[Honest], seconds: float) -> list[Pace]:
    """Run all honest clients at the same time."""
    with ThreadPoolExecutor(len(honest)) as pool:
        return list(pool.map(lambda each: each.send(seconds), honest))


def medians(paces: Sequence[Pace]) -> Pace:
    return Pace(
        median(each.per_second for each in paces),
        median(each.median_ms for each in paces),
        median(each.p99_ms for each in paces),
    )


def is_kept(alone: Pace, beside: Pace) -> bool:
    """Return whether an honest client goes on as before."""
    return beside.per_second >= KEPT * alone.per_second and beside.p99_ms <= LATENCY_TIMES * max(
        alone.p99_ms, LATENCY_LEAST_MS
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_client_goes_on_and_memory_stays_bounded(
    guarded: tuple[Broker, Accounts], kind: str, console: str
) -> None:
    broker, accounts = guarded
    attacker = accounts.shop if kind in MAY_READ else accounts.stranger
    if kind in MAY_READ:
        send_large_messages(broker, attacker.user, attacker.secret)
    honest: list[Honest] = [
        GoodClient(broker.endpoint, "acme-steady", signed(accounts.shop.user, accounts.shop.secret)),
        *([ConsoleUser(console, accounts.shop.user, accounts.shop.secret)] if kind == CONSOLE else []),
    ]
    endpoint = {ADMIN: broker.admin, CONSOLE: console}.get(kind, broker.endpoint)
    # in the name of the one who logs in beside it
    user = accounts.shop.user if kind == CONSOLE else attacker.user
    memory = Memory(broker)
    before = memory.own()

    def measured() -> list[tuple[Pace, Pace]]:
        """Return the pace of each honest client, alone and beside the attack."""
        alone, beside = list[list[Pace]](), list[list[Pace]]()
        for _ in range(ROUNDS):
            alone.append(all_send(honest, ROUND_S))
            with attacked(endpoint, kind, 20 * ROUND_S, user, attacker.secret):
                all_send(honest, WARM_UP_S.get(kind, 0.5))
                beside.append(all_send(honest, ROUND_S))
                RawClient(broker.endpoint, 1).close()
                assert_known_on_the_admin_port(broker, accounts)
            until(lambda: broker.stat("quarry_front_connections_open") <= 1, "the attack is over", timeout_s=120.0)
        return list(zip(map(medians, zip(*alone, strict=True)), map(medians, zip(*beside, strict=True)), strict=True))

    try:
        all_send(honest, 1.0)
        for _ in range(TRIES):
            paces = measured()
            for each, (first, then) in zip(honest, paces, strict=True):
                print(f"{kind}, {type(each).__name__}: alone {first}; beside it {then}")
            if all(is_kept(*each) for each in paces):
                break
    finally:
        for each in honest:
            each.close()
    most = memory.end()
    print(f"{before >> 20} MiB became at most {most >> 20} MiB")
    assert not [each.refused for each in honest if each.refused]
    assert all(is_kept(*each) for each in paces), paces
    assert most < MOST
    until(lambda: broker.stat("quarry_front_connections_open") == 0, "no connection is open", timeout_s=120.0)
