"""Runs a broker for a demo, and sends a message through it with an official client.

The client runs in a process of its own: its generated protobuf code and ours cannot share one.
"""

from __future__ import annotations

import os
import secrets
import site
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from quarry_mq.cli.terminal.text import say

READY_TIMEOUT_S: Final = 60.0
CLIENT_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
TOPIC: Final = "demo"
PORTS: Final = range(10_240, 32_768)

CLIENT: Final = textwrap.dedent(
    """
    import sys
    from rocketmq import ClientConfiguration, Credentials, FilterExpression, Message, Producer, SimpleConsumer

    endpoint, topic = sys.argv[1:]
    configuration = ClientConfiguration(endpoint, Credentials())

    consumer = SimpleConsumer(configuration, "demo-readers", {topic: FilterExpression()})
    producer = Producer(configuration, (topic,))
    producer.startup()
    consumer.startup()

    message = Message()
    message.topic, message.body, message.tag = topic, b"hello, quarry", "greeting"
    receipt = producer.send(message)
    print(f"sent      {receipt.message_id}", flush=True)

    for _ in range(10):
        received = consumer.receive(1, 15) or []
        for each in received:
            consumer.ack(each)
            print(f"received  {each.message_id}  {each.body.decode()}", flush=True)
        if received:
            break
    else:
        sys.exit("nothing was received")
    if received[0].message_id != receipt.message_id or received[0].body != b"hello, quarry":
        sys.exit("another message was received")
    print("acknowledged", flush=True)
    consumer.shutdown()
    producer.shutdown()
    """
)


class Addresses(NamedTuple):
    """The addresses of a broker, each as `host:port`. The console is `off` if there is none."""

    listen: str
    admin: str
    http: str
    console: str = "off"


DEFAULTS: Final = Addresses("127.0.0.1:8081", "127.0.0.1:8082", "127.0.0.1:9464", "127.0.0.1:8083")
"""The addresses that a broker has without settings."""

NO_REMOTING: Final[Mapping[str, str]] = {"QUARRY_REMOTING_LISTEN": "off", "QUARRY_REMOTING_NAMES_LISTEN": "off"}
"""Settings of a broker that leaves the ports of RocketMQ's remoting protocol to others."""


def main() -> int:
    """Send one message there and back. Returns 0 when the message was sent, received and acknowledged."""
    with tempfile.TemporaryDirectory(prefix="quarry-demo-") as directory:
        addresses = Addresses(*(f"127.0.0.1:{port}" for port in free_ports(3)))
        try:
            with running_broker(Path(directory), addresses):
                return run_client(addresses.listen, Path(directory))
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            say(f"the demo failed: {error}", err=True)
            return 1


@contextmanager
def running_broker(
    directory: Path, addresses: Addresses, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Run a broker in another process, from when it is ready on. `settings` are by the names of their variables.

    Raises RuntimeError, with the broker's output, when it does not start.
    """
    say(f"starting a broker on {directory}")
    command = [sys.executable, "-m", "quarry_mq.cli.main", "serve", "--store", str(directory / "store")]
    command += (part for name, address in addresses._asdict().items() for part in (f"--{name}", address))
    log = directory / "broker.log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**NO_REMOTING, **os.environ, **settings}
        ) as broker,
    ):
        watchdog = threading.Timer(READY_TIMEOUT_S, broker.kill)
        watchdog.start()
        try:
            # The broker's first line is that it is ready; no line means that it ended.
            ready = broker.stdout is not None and broker.stdout.readline()
            watchdog.cancel()
            if not ready:
                raise RuntimeError(f"the broker did not start: {log.read_text(errors='replace').strip()}")
            say(f"broker    {addresses.listen}")
            yield
        finally:
            watchdog.cancel()
            broker.terminate()
            try:
                broker.communicate(timeout=STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                broker.kill()


def run_client(endpoint: str, home: Path) -> int:
    """Send, receive and acknowledge with `rocketmq-python-client`; return its exit status.

    The client writes logs below its home directory, so it gets a temporary one.
    """
    say("client    rocketmq-python-client")
    environment = {**os.environ, "HOME": str(home), "PYTHONUSERBASE": site.getuserbase()}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, endpoint, TOPIC], check=False, timeout=CLIENT_TIMEOUT_S, env=environment
    )
    say("the message was sent and received" if done.returncode == 0 else "the client failed")
    return done.returncode


def free_addresses() -> Addresses:
    """Return the addresses that a broker has without settings, if nothing listens there, and free ones otherwise."""
    if all(is_free(int(address.rpartition(":")[2]), reused=True) for address in DEFAULTS):
        return DEFAULTS
    return Addresses(*(f"127.0.0.1:{port}" for port in free_ports(len(DEFAULTS))))


def is_free(port: int, *, reused: bool = False) -> bool:
    """Return whether a process can listen on this port of the loopback address.

    With `reused` the port may still have connections of a process that has ended, as brokers may when they start.
    """
    with socket.socket() as probe:
        if reused:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return distinct ports of the loopback address that no process listens on now.

    They lie below the range that systems give to outgoing connections. So no outgoing connection can take one before a
    process listens on it, or between a stop and a restart.
    """
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(PORTS)
        if port not in found and is_free(port):
            found.append(port)
    return found
