"""`quarry demo --keep`: a broker on which there is something to see in every view."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any, Final

import grpc
import pytest

from quarry_mq.cli import demo as demo_broker
from quarry_mq.cli.demo import Addresses, free_ports, running_broker
from quarry_mq.cli.local import demo
from quarry_mq.client.admin import AdminClient
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.protocol.proto.quarry.admin.v1 import dead_letters_pb2, overview_pb2
from tests.cli.offline_runner import refusal

PATIENCE_S: Final = 60.0


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[Addresses]:
    """The addresses of a broker of the demo; parts of the demo run until the end of the test."""
    made = Addresses(*(f"127.0.0.1:{port}" for port in free_ports(4)))
    asked = Event()
    failures: list[BaseException] = []

    def live() -> None:
        try:
            demo._live(made, asked)
        except BaseException as error:
            failures.append(error)

    with running_broker(tmp_path, made, demo.SETTINGS):
        thread = Thread(target=live)
        thread.start()
        yield made
        asked.set()
        thread.join()
    assert not failures


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline_s
        sleep(0.1)


@pytest.mark.slow
def test_there_is_something_to_see_in_every_view(addresses: Addresses) -> None:
    with AdminClient(Endpoint(addresses.admin)) as admin:

        def overview() -> Any:
            return admin.call("OverviewService/GetOverview", overview_pb2.GetOverviewRequest())

        def dead_letters() -> bool:
            request = dead_letters_pb2.ListDeadLettersRequest(group="invoicing", count=1)
            try:
                return bool(admin.call("DeadLetterService/ListDeadLetters", request).dead_letters)
            except grpc.RpcError:
                return False  # there is no dead-letter topic yet

        eventually(dead_letters)
        eventually(lambda: overview().ready_messages >= demo.FORGOTTEN // demo.BATCH * demo.BATCH - demo.BATCH)
        eventually(lambda: bool(overview().timers and overview().transactions and overview().lite_topics))
        now = overview()
        assert now.producers >= 5
        assert now.consumers >= 5
        kinds = {topic.name: topic.type for topic in admin.topics() if topic.name in demo.TOPICS}
        assert kinds == demo.TOPICS
        assert {group.name for group in admin.groups()} >= {"billing", "settlement", "audit", "invoicing"}


@pytest.mark.slow
def test_a_demo_goes_on_with_the_store_of_an_earlier_one(tmp_path: Path) -> None:
    for _ in range(2):
        addresses = Addresses(*(f"127.0.0.1:{port}" for port in free_ports(4)))
        with running_broker(tmp_path, addresses, demo.SETTINGS):
            demo.Life(addresses, SystemClock()).prepare()


def test_a_store_without_keep_is_refused(tmp_path: Path) -> None:
    assert refusal(2, "demo", "--store", tmp_path / "store") == "--store: needs --keep"
    assert not (tmp_path / "store").exists()


def test_addresses_that_are_taken_are_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr(demo_broker, "DEFAULTS", demo_broker.DEFAULTS._replace(admin=address))
        found = demo_broker.free_addresses()
    assert address not in found
    assert len(set(found)) == len(found) == 4
