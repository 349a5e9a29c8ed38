"""A real HAProxy in front of a broker, with PROXY headers of both versions."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from quarry_mq.cli.demo import free_ports
from tests.certificates import make_tls
from tests.e2e.broker import Broker, until
from tests.e2e.conftest import StartBroker, StartClients
from tests.e2e.debian import unpacked
from tests.e2e.test_mapped_ports import round_trip

pytestmark = pytest.mark.slow

LIBRARIES: Final = ("liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
ITS_ADDRESS: Final = "127.0.0.2"
"""HAProxy connects to the broker from this address, and clients do from 127.0.0.1."""

StartHaproxy = Callable[[Broker, str], str]


@pytest.fixture
def start_haproxy(tmp_path: Path) -> Iterator[StartHaproxy]:
    running: list[subprocess.Popen[bytes]] = []

    def start(broker: Broker, option: str) -> str:
        """Start HAProxy with this option for its connections to the broker; return its address."""
        folder = unpacked("haproxy", *LIBRARIES)
        [port] = free_ports(1)
        (tmp_path / "haproxy.cfg").write_text(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1m\n  timeout server 1m\n"
            f"listen broker\n  bind 127.0.0.1:{port}\n"
            f"  server broker {broker.endpoint} source {ITS_ADDRESS} {option}\n"
        )
        libraries = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, (folder / "usr" / "lib").glob("*-linux-gnu")))}
        running.append(
            subprocess.Popen(
                [folder / "usr" / "sbin" / "haproxy", "-db", "-f", tmp_path / "haproxy.cfg"],
                env={**os.environ, **libraries},
            )
        )
        until(lambda: listens(port), "HAProxy listens")
        return f"127.0.0.1:{port}"

    yield start
    for each in running:
        each.terminate()
        each.wait(20)


def listens(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def callers(broker: Broker) -> set[str]:
    """The hosts that called, by the access log."""
    lines = [json.loads(line) for line in broker.words(last=100_000_000).splitlines() if line.startswith("{")]
    return {each["peer"].rpartition(":")[0] for each in lines if each["event"] == "call"}


@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2", ""])
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_haproxy_tells_the_addresses_of_its_clients(
    start_broker: StartBroker,
    start_clients: StartClients,
    start_haproxy: StartHaproxy,
    tmp_path: Path,
    *,
    option: str,
    secure: bool,
) -> None:
    tls = make_tls(tmp_path)
    settings = {
        **tls.settings("optional"),
        "network.proxies": f'["{ITS_ADDRESS}"]',
        "log.access": True,
        "log.format": "json",
    }
    broker = start_broker(settings=settings)
    broker.administer("topic", "create", "orders")
    outside = start_haproxy(broker, option).replace("127.0.0.1", "localhost")
    round_trip(start_clients("python", outside, tls_authority=tls.authority_path if secure else None))
    assert callers(broker) == {"127.0.0.1" if option else ITS_ADDRESS}
