"""Two pages about a move, word by word: Apache RocketMQ 5.5.0, clients of 4.9.8, then Quarry."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from bench.peers import rocketmq
from quarry_mq.store.settings import Durability
from tests.documents.pages import ROOT
from tests.documents.playing import play
from tests.documents.session import Session, own_network
from tests.remoting.test_java_clients import HERE as REMOTING
from tests.remoting.test_java_clients import remoting_classes
from tests.remoting.test_tools import MAIN, NO_LOGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGES: Final = ("migrate-from-rocketmq-clients.md", "follow-rocketmq.md")
PORTS: Final = (15_000, 15_001, 9876, 10_911)
"""The ports of RocketMQ's proxy, of the proxy's remoting side, of the name server and of the broker."""

RECEIVED: Final = """
import sys

rows = [line.split()[1:] for line in sys.stdin if line.startswith("got ")]
numbers = [int(number) for _, number in rows]
queues = {queue: [int(number) for own, number in rows if own == queue] for queue, _ in rows}
once = "each once" if len(set(numbers)) == len(numbers) else "some twice"
order = "every queue in order" if all(each == sorted(each) for each in queues.values()) else "out of order"
print(f"received {len(numbers)} messages, {min(numbers)} to {max(numbers)}, {once}, {order}")
"""


def java(class_path: str) -> str:
    """Return the beginning of a shell command that runs a program of RocketMQ 4."""
    options = ("-XX:TieredStopAtLevel=1", "-Drocketmq.client.logUseSlf4j=true")
    return shlex.join(("java", *options, "-cp", f"{REMOTING / 'java' / 'src'}:{class_path}"))


def write_commands(folder: Path, class_path: str, home: Path, servers: dict[str, str]) -> None:
    """Write what the reader of the page has: RocketMQ's commands, and two programs with a client of RocketMQ 4."""
    (home / "tools" / "conf").mkdir(parents=True)
    (home / "tools" / "conf" / "logback_tools.xml").write_text(NO_LOGS)
    (home / "received.py").write_text(RECEIVED)
    program = java(class_path)
    send = f"{program} -Dfirst=$1 -Dlast=$2 Scenarios $NAMESRV_ADDR orders fleet-send"
    receive = f"{program} -Dcount=$1 Scenarios $NAMESRV_ADDR orders fleet-receive"
    scripts = {
        "old-producer": f'{send} > /dev/null && echo "sent $1 to $(($2 - 1))"',
        "old-consumer": f"{receive} | {sys.executable} {home / 'received.py'}",
        "mqadmin": f'{program} -Drocketmq.home.dir={home / "tools"} {MAIN} "$@"',
        "mqshutdown": "\n".join(
            (
                "case \"$1\" in broker) main='ProxyStartup|BrokerStartup' ;; *) main=NamesrvStartup ;; esac",
                'pkill -f "$main"',
                'while pgrep -f "$main" > /dev/null; do sleep 0.1; done',
                'echo "The $1 has stopped"',
            )
        ),
        **servers,
    }
    for name, text in scripts.items():
        script = folder / name
        script.write_text(f"#!/bin/bash\n{text}\n")
        script.chmod(0o755)


def start_rocketmq(session: Session) -> None:
    """Start name server and broker in the network of the page, and wait until clients are served."""
    session.start("mqnamesrv")
    session.start("mqbroker")
    deadline = time.monotonic() + 120
    while session.run("mqadmin topicRoute -n 127.0.0.1:9876 -t orders | grep -q readQueueNums").status:
        assert time.monotonic() < deadline, "RocketMQ does not serve"


@pytest.mark.skipif(not own_network(), reason="no network of its own, and RocketMQ's ports may be taken")
@pytest.mark.parametrize("page", PAGES)
def test_the_fleet_moves_as_the_page_says(
    page: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocketmq, "_ports", lambda: PORTS)
    server = rocketmq.RocketMQ(tmp_path / "rocketmq", Durability.SYNC, topic="orders", queues=4, groups=["fleet"])
    variables = " ".join(f"{name}={value}" for name, value in server.environment.items())
    other = shlex.join(server._java("org.apache.rocketmq.broker.BrokerStartup", "-c", "FILE", heap="1g")).replace(
        "FILE", '"$2"'
    )
    proxy = shlex.join(server.broker_command())
    servers = {
        "mqnamesrv": f"{variables} exec {shlex.join(server.name_server_command())}",
        "mqbroker": f'export {variables}\nif [ "$1" = -c ]; then exec {other}; fi\nexec {proxy}',
    }
    with Session(tmp_path / "page") as session:
        class_path = remoting_classes("4.9.8", tmp_path_factory)
        write_commands(tmp_path / "page-commands", class_path, tmp_path, servers)
        start_rocketmq(session)
        yours = {"ROCKETMQ_STORE": str(tmp_path / "rocketmq" / "store")}
        assert play(ROOT / "docs" / page, session, yours=yours) > 10
