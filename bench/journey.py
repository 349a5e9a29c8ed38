"""`python -m bench.journey` counts the modules that a call passes on its way through a broker, and prints a table.

A call is made several times, after some that warm the broker up. A module counts if each of the calls ran more
functions of it than the broker runs in the same time without a call, so what the broker does in the background does not
count. `calls` and `changes` are those of the call that had the fewest: calls of functions of ours, and how often the
next one lies in another module.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import grpc

from bench.peers.quarry import PROJECT, Quarry
from bench.scratch_store import TOPIC
from bench.send_load import send_body
from quarry_mq.client.errors import require_ok
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.store.native import NATIVE
from quarry_mq.store.settings import Durability

WARM_UP_CALLS: Final = 20
CALLS: Final = 8
SETTLE_S: Final = 0.1
"""Seconds that are left to a broker after an answer for what belongs to the call and comes after the answer."""
TIMEOUT_S: Final = 30.0
GROUP: Final = "bench-journey"
SETTINGS: Final = {"QUARRY_DELIVERY_NEW_GROUP_START": "earliest"}
METADATA: Final = (("x-mq-client-id", "bench@1@1"), ("x-mq-language", "JAVA"), ("x-mq-client-version", "5.2.0"))


class Journey(NamedTuple):
    """The way of one call."""

    name: str
    modules: frozenset[str]
    calls: int
    changes: int

    @classmethod
    def of(cls, name: str, traces: Sequence[Sequence[str]], idle: Sequence[Sequence[str]] = ()) -> Journey:
        """Return what the traces have in common: the modules of the calls of each repetition, in their order.

        `idle` are traces of the same length without a call.
        """
        background: Counter[str] = Counter()
        for each in idle:
            background |= Counter(each)
        modules = frozenset.intersection(*(frozenset(Counter(each) - background) for each in traces))
        changes = min(sum(one != other for one, other in pairwise(trace)) for trace in traces)
        return cls(name, modules, min(map(len, traces)), changes)


class Traced:
    """A broker that records which modules it passes."""

    def __init__(self, directory: Path, part: str) -> None:
        self.part = part
        self._trace = directory / f"{part}.json"
        self._broker = Quarry(directory / part, Durability.SYNC, SETTINGS)
        self._broker.start(program=("bench.peers.traced", str(self._trace), part))
        self.endpoint, self.admin = self._broker.endpoint, self._broker.admin

    def close(self) -> None:
        self._broker.close()

    def journey(self, name: str, call: Callable[[], None]) -> Journey:
        for _ in range(WARM_UP_CALLS):
            call()
        return Journey.of(name, [self.trace(call) for _ in range(CALLS)], self.idle(0.0))

    def idle(self, seconds: float) -> list[list[str]]:
        """Return what the broker does without a call, in the time of a trace of a call that takes this long."""
        return [self.trace(lambda: time.sleep(seconds)) for _ in range(CALLS)]

    def trace(self, call: Callable[[], None]) -> list[str]:
        """Return the modules of all calls of functions that the broker makes for this call from outside."""
        time.sleep(SETTLE_S)
        self._take()
        call()
        time.sleep(SETTLE_S)
        return self._take()

    def _take(self) -> list[str]:
        """Return what was called since the time before."""
        self._trace.unlink(missing_ok=True)
        os.kill(self._broker.pid, signal.SIGUSR1)
        give_up_s = time.monotonic() + TIMEOUT_S
        while not self._trace.exists():
            if time.monotonic() > give_up_s:
                raise RuntimeError("the broker does not tell what it did")
            time.sleep(SETTLE_S / 10)
        calls: list[str] = json.loads(self._trace.read_text())["calls"]
        return calls


class Client:
    """Makes calls as an official client makes them."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub: Any = MessagingServiceStub(channel)
        self._random = Random(1)
        self._received: list[definition.Message] = []

    def send(self) -> None:
        request = service.SendMessageRequest.FromString(send_body(self._random))
        require_ok(self._stub.SendMessage(request, metadata=METADATA, timeout=TIMEOUT_S).status)

    def receive(self) -> None:
        """Receive one message that is there."""
        request = service.ReceiveMessageRequest(group=definition.Resource(name=GROUP), batch_size=1)
        request.message_queue.topic.name = TOPIC
        request.message_queue.id = -1
        request.invisible_duration.seconds = 600
        request.long_polling_timeout.seconds = 5
        answers = list(self._stub.ReceiveMessage(request, metadata=METADATA, timeout=TIMEOUT_S))
        self._received += (each.message for each in answers if each.HasField("message"))
        for each in answers:
            if each.HasField("status"):
                require_ok(each.status)

    def acknowledge(self) -> None:
        message = self._received.pop()
        properties = message.system_properties
        request = service.AckMessageRequest(group=definition.Resource(name=GROUP), topic=message.topic)
        request.entries.add(message_id=properties.message_id, receipt_handle=properties.receipt_handle)
        require_ok(self._stub.AckMessage(request, metadata=METADATA, timeout=TIMEOUT_S).status)


def messaging(broker: Traced) -> Iterator[Journey]:
    with grpc.insecure_channel(broker.endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        client = Client(channel)
        yield broker.journey(f"SendMessage, {broker.part}", client.send)
        yield broker.journey(f"ReceiveMessage, {broker.part}", client.receive)
        yield broker.journey(f"AckMessage, {broker.part}", client.acknowledge)


def topic_create(broker: Traced, directory: Path) -> Iterator[Journey]:
    """Trace `quarry topic create` and the broker that carries it out."""
    trace = directory / "command.json"
    command = [sys.executable, "-m", "bench.peers.traced", str(trace), broker.part, "topic", "create"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUARRY_")}
    told: list[dict[str, list[str]]] = []

    def create() -> None:
        arguments = [*command, f"bench-{len(told)}", "--admin", broker.admin]
        subprocess.run(arguments, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL, check=True)
        told.append(json.loads(trace.read_text()))

    create()
    begun_s = time.monotonic()
    brokers = [broker.trace(create) for _ in range(CALLS)]
    idle = broker.idle((time.monotonic() - begun_s) / CALLS - 2 * SETTLE_S)
    commands = [each["calls"] for each in told[1:]]
    yield Journey.of("CreateTopic, command", commands)
    yield Journey.of("CreateTopic, broker", brokers, idle)
    both = [[*one, *other] for one, other in zip(commands, brokers, strict=True)]
    yield Journey.of("CreateTopic, end to end", both, idle)
    yield Journey("CreateTopic, imported by the command", frozenset(told[-1]["imports"]), 0, 0)


def journeys() -> Iterator[Journey]:
    """Trace the calls without the native part, and with it if there is one that goes with this code."""
    parts = ("python",) if NATIVE is None else ("python", "native")
    for part in parts:
        with (
            tempfile.TemporaryDirectory(prefix="quarry-bench-journey-") as scratch,
            closing(Traced(Path(scratch), part)) as broker,
        ):
            yield from messaging(broker)
            if part == parts[-1]:
                yield from topic_create(broker, Path(scratch))


def table(found: Iterable[Journey]) -> Iterator[str]:
    yield f"{'':40} {'modules':>8} {'packages':>8} {'calls':>8} {'changes':>8}"
    for each in found:
        packages = {module.rpartition(".")[0] for module in each.modules}
        yield f"{each.name:40} {len(each.modules):>8} {len(packages):>8} {each.calls or '':>8} {each.changes or '':>8}"


def main() -> None:
    """Print the table; with `--list` the modules of each call, too."""
    found = list(journeys())
    if "--list" in sys.argv[1:]:
        for each in found:
            print(each.name, *(f"  {module}" for module in sorted(each.modules)), sep="\n")
    print(*table(found), sep="\n")


if __name__ == "__main__":
    main()
