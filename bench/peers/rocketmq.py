"""Runs Apache RocketMQ as users run it on one machine: a name server, and a proxy with a broker inside (local mode)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from bench.peers.maven import class_path
from quarry_mq.store.settings import Durability

PROJECT: Final = Path(__file__).parent / "rocketmq-server"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 90.0
FLUSH_DISK_TYPE: Final = {Durability.SYNC: "SYNC_FLUSH", Durability.ASYNC: "ASYNC_FLUSH"}
"""RocketMQ's names of durabilities: answered when on disk; answered at once and flushed every 500 ms."""

JVM: Final = (
    "-XX:+UseG1GC",
    "-XX:-OmitStackTraceInFastThrow",
    # RocketMQ's code unmaps files and counts direct memory through internals of the JDK
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
READ_AND_WRITE: Final = 6
FIRST_PORT: Final = 15_000
LAST_PORT: Final = 32_000
PORTS: Final = 8


class RocketMQ:
    """Run one RocketMQ on loopback ports, with one topic and some consumer groups. Files lie in `directory`."""

    def __init__(
        self,
        directory: Path,
        durability: Durability,
        *,
        topic: str,
        queues: int,
        groups: Sequence[str],
        store: Path | None = None,
        properties: Mapping[str, object] = MappingProxyType({}),
        proxy_properties: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Prepare a new store, or an existing one whose tables of topics and groups are overwritten.

        `properties` are further settings of the broker, `proxy_properties` of the proxy.
        """
        directory.mkdir()
        store = store or directory / "store"
        self._directory = directory
        self._class_path = class_path(PROJECT)
        front, remoting, names, broker = _ports()
        self.endpoint = f"127.0.0.1:{front}"
        self._front, self._names = front, names
        self.names = f"127.0.0.1:{names}"
        self.broker_port: Final = broker
        """The port that clients of the remoting protocol connect to."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._configuration = directory / "conf"
        self._configuration.mkdir()
        _write_tables(store / "config", topic=topic, queues=queues, groups=groups)
        _write_properties(self._configuration / "namesrv.conf", {"listenPort": names})
        _write_properties(
            self._configuration / "broker.conf",
            {
                "brokerClusterName": "DefaultCluster",
                "brokerName": "rocketmq",
                "brokerId": 0,
                "brokerIP1": "127.0.0.1",
                "listenPort": broker,
                "namesrvAddr": f"127.0.0.1:{names}",
                "brokerRole": "ASYNC_MASTER",
                "flushDiskType": FLUSH_DISK_TYPE[durability],
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
                **properties,
            },
        )
        proxy = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "local",
            "localServeAddr": "127.0.0.1",
            "namesrvAddr": f"127.0.0.1:{names}",
            "grpcServerPort": front,
            "remotingListenPort": remoting,
            **proxy_properties,
        }
        (self._configuration / "rmq-proxy.json").write_text(json.dumps(proxy))

    @property
    def pid(self) -> int:
        """Id of the process that serves clients and stores messages."""
        return self._processes[-1].pid

    def start(self) -> None:
        """Start both processes; return when they listen, which is before they serve. Raises RuntimeError."""
        self._launch(self.name_server_command())
        self._wait_for(self._names)
        self.start_broker()

    def start_broker(self) -> None:
        """Start the process that holds the broker; return when it listens. Raises RuntimeError."""
        self._launch(self.broker_command())
        self._wait_for(self._front)

    def name_server_command(self) -> list[str]:
        """Return the command that runs the name server."""
        return self._java(
            "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", self._configuration / "namesrv.conf", heap="256m"
        )

    def broker_command(self) -> list[str]:
        """Return the command that runs the proxy with the broker inside."""
        files = ("-bc", self._configuration / "broker.conf", "-pc", self._configuration / "rmq-proxy.json")
        return self._java("org.apache.rocketmq.proxy.ProxyStartup", "-pm", "local", "-n", self.names, *files, heap="2g")

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that both processes need."""
        return {"ROCKETMQ_HOME": str(self._directory), "NAMESRV_ADDR": self.names}

    def stop(self) -> None:
        """Stop both processes as an operator does; return when they have ended. The store is whole then."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(STOP_TIMEOUT_S)

    def close(self) -> None:
        """Kill both processes like `kill -9`: a clean stop takes many seconds."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _java(self, main: str, *arguments: str | Path, heap: str) -> list[str]:
        # logs go below user.home; the heap is allocated at the start, as RocketMQ's scripts do it
        options = [*JVM, f"-Xms{heap}", f"-Xmx{heap}", f"-Duser.home={self._directory}"]
        return ["java", *options, "-cp", f"{self._configuration}:{self._class_path}", main, *map(str, arguments)]

    def _launch(self, command: list[str]) -> None:
        with (self._directory / f"{len(self._processes)}.out").open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(port):
            if self._processes[-1].poll() is not None or time.monotonic() > deadline:
                words = "\n".join(path.read_text(errors="replace")[-2000:] for path in self._directory.glob("*.out"))
                raise RuntimeError(f"RocketMQ does not listen on port {port}: {words}")
            time.sleep(0.1)


def _write_tables(directory: Path, *, topic: str, queues: int, groups: Sequence[str]) -> None:
    """Write topics and groups as a broker stores them: 5.5.0 refuses consumers of groups that do not exist yet."""
    directory.mkdir(parents=True, exist_ok=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    settings = {"topicName": topic, "readQueueNums": queues, "writeQueueNums": queues, "perm": READ_AND_WRITE}
    topics = {"dataVersion": version, "topicConfigTable": {topic: settings}}
    group_table = {"dataVersion": version, "subscriptionGroupTable": {group: {"groupName": group} for group in groups}}
    (directory / "topics.json").write_text(json.dumps(topics))
    (directory / "subscriptionGroup.json").write_text(json.dumps(group_table))


def _write_properties(path: Path, properties: dict[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def _ports() -> tuple[int, int, int, int]:
    """Return ports for the proxy, its remoting side, the name server and the broker.

    The broker also takes the one 2 below its own and the one above. All lie below the range that systems give to
    outgoing connections: a JVM takes seconds to bind a port, and by then a connection could have taken it.
    """
    for first in range(FIRST_PORT + os.getpid() % 1_000 * PORTS, LAST_PORT, PORTS):
        if not any(_listens(port) for port in range(first, first + PORTS)):
            return first, first + 1, first + 2, first + 5
    raise RuntimeError(f"no {PORTS} free ports in a row between {FIRST_PORT} and {LAST_PORT}")


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
