"""`quarry demo` shows a broker at work: one message there and back, or a broker full of life to look at."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Annotated, Any, Final, NamedTuple

import grpc
import typer

from quarry_mq.cli.demo import DEFAULTS, Addresses, free_addresses, main, running_broker
from quarry_mq.cli.terminal.exit import Exit, asked_to_end, end
from quarry_mq.cli.terminal.text import say
from quarry_mq.client.admin import AdminClient
from quarry_mq.client.channel import open_channel
from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.errors import CallRefused, require_ok
from quarry_mq.client.messaging import CALL_TIMEOUT_S, MessagingClient
from quarry_mq.client.requests import OutgoingMessage, Requests, Subscription
from quarry_mq.protocol.clock import Clock, SystemClock
from quarry_mq.protocol.lite_attributes import BIND_TOPIC, EXPIRATION
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.apache.rocketmq.v2.service_pb2_grpc import MessagingServiceStub
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb

TOPICS: Final = {
    "orders": pb.TOPIC_TYPE_NORMAL,
    "payments": pb.TOPIC_TYPE_FIFO,
    "reminders": pb.TOPIC_TYPE_DELAY,
    "transfers": pb.TOPIC_TYPE_TRANSACTION,
    "tickets": pb.TOPIC_TYPE_PRIORITY,
    "sessions": pb.TOPIC_TYPE_LITE,
}
SESSIONS: Final = 50
"""Lite topics of `sessions`."""
FORGOTTEN: Final = 2_000
"""Messages that are there for `audit` when its only consumer leaves."""
SETTINGS: Final = {"QUARRY_INDEX_TIERED": "true", "QUARRY_DELIVERY_NEW_GROUP_START": "earliest"}
BATCH: Final = 32
EXPLANATION: Final = """
Topics of every type get messages. These groups read them:
  billing      keeps up with orders
  settlement   reads payments in their order
  mailer       reads reminders when they are due
  support      is slower than tickets come, so its lag grows
  audit        has lag and no consumer
  invoicing    acknowledges nothing, so its messages become dead letters

Look at them:
  quarry top{admin}
  quarry overview{admin}
  quarry doctor
  quarry browse orders{admin}
  quarry dead-letters list invoicing{admin}
"""


class Part(NamedTuple):
    """A part of the demo repeats one activity, with a pause before each time."""

    pause_s: float
    act: Callable[[], object]


def demo(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Run a broker full of life until Ctrl-C, with topics of every type.")
    ] = False,
    store: Annotated[
        Path | None, typer.Option("--store", metavar="DIR", help="Keep the store here; by default it is temporary.")
    ] = None,
) -> None:
    """Send and receive a message on a temporary broker, or with --keep run a broker full of life to look at."""
    if not keep:
        if store is not None:
            end(Exit.COULD_NOT_RUN, "--store: needs --keep")
        raise typer.Exit(Exit.COULD_NOT_RUN if main() else Exit.FINE)
    try:
        addresses = free_addresses()
        with asked_to_end() as asked, _folder(store) as folder, running_broker(folder, addresses, SETTINGS):
            _show(addresses)
            _live(addresses, asked)
    except (OSError, RuntimeError, grpc.RpcError, CallRefused) as error:
        end(Exit.COULD_NOT_RUN, f"the demo failed: {error}")


@contextmanager
def _folder(store: Path | None) -> Iterator[Path]:
    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        yield store
        return
    with tempfile.TemporaryDirectory(prefix="quarry-demo-") as directory:
        yield Path(directory)


def _show(found: Addresses) -> None:
    say(f"admin     {found.admin}")
    say(f"console   http://{found.console}/")
    say(EXPLANATION.format(admin="" if found == DEFAULTS else f" --admin {found.admin}"))
    say("Ctrl-C ends it")


def _live(found: Addresses, asked: Event) -> None:
    """Run all parts, each on a thread of its own, until `asked` is set or one fails."""
    life = Life(found, SystemClock())
    life.prepare()
    failures: list[OSError | grpc.RpcError | CallRefused] = []

    def run(make: Callable[[], Iterator[Part]]) -> None:
        try:
            for part in make():
                while not asked.wait(part.pause_s):
                    part.act()
        except (OSError, grpc.RpcError, CallRefused) as error:
            if not asked.is_set():
                failures.append(error)
                asked.set()

    threads = [Thread(target=run, args=(each,), daemon=True) for each in life.parts()]
    for thread in threads:
        thread.start()
    asked.wait()
    for thread in threads:
        thread.join()
    for failure in failures:
        raise failure


class Life:
    """The producers and consumers of the demo. Each part opens clients of its own: a client serves one thread."""

    def __init__(self, found: Addresses, clock: Clock) -> None:
        self._messaging = Endpoint(found.listen)
        self._admin = Endpoint(found.admin)
        self._clock = clock
        self._numbers = count(1)
        self._random = Random()

    def prepare(self) -> None:
        """Create topics and groups, unless an earlier demo left them in the store, and the lag of `audit`."""
        with AdminClient(self._admin) as admin:
            for topic, kind in TOPICS.items():
                with _left_by_an_earlier_demo():
                    admin.create_topic(topic, type=kind, attributes={EXPIRATION: "30"} if topic == "sessions" else None)
            for group in ("billing", "mailer", "support", "audit"):
                with _left_by_an_earlier_demo():
                    admin.create_group(group)
            with _left_by_an_earlier_demo():
                admin.create_group("settlement", fifo=True)
            with _left_by_an_earlier_demo():
                admin.create_group("invoicing", max_attempts=2)
            with _left_by_an_earlier_demo():
                request = pb.CreateGroupRequest(name="chat", attributes={BIND_TOPIC: "sessions"})
                admin.call("AdminService/CreateGroup", request)
        with MessagingClient(self._messaging) as producer:
            for _ in range(FORGOTTEN // BATCH):
                producer.send(*(self._order() for _ in range(BATCH)))
        audit = Subscription(group="audit", topic="orders")
        with MessagingClient(self._messaging, subscription=audit) as consumer:
            for message in consumer.receive(limit=BATCH, invisible_s=30, wait_s=2):
                consumer.acknowledge(message)

    def parts(self) -> list[Callable[[], Iterator[Part]]]:
        return [
            lambda: self._producing(0.05, self._order),
            lambda: self._producing(0.2, self._payment),
            lambda: self._producing(1.0, self._reminder),
            lambda: self._producing(0.25, self._ticket),
            lambda: self._producing(0.2, self._session),
            self._transferring,
            lambda: self._consuming("billing", "orders", 0.1),
            lambda: self._consuming("settlement", "payments", 0.2),
            lambda: self._consuming("mailer", "reminders", 0.2),
            lambda: self._consuming("support", "tickets", 2.0, limit=1),
            self._never_acknowledging,
        ]

    def _order(self) -> OutgoingMessage:
        number = next(self._numbers)
        tag = self._random.choice(("coffee", "tea", "cake"))
        return OutgoingMessage(
            topic="orders",
            body=b'{"order": %d, "item": "%s"}' % (number, tag.encode()),
            tag=tag,
            keys=[f"order-{number}"],
            properties={"region": self._random.choice(("north", "south"))},
        )

    def _payment(self) -> OutgoingMessage:
        number = next(self._numbers)
        account = f"account-{self._random.randrange(20)}"
        return OutgoingMessage(topic="payments", body=b"payment %d" % number, message_group=account)

    def _reminder(self) -> OutgoingMessage:
        at_ms = self._clock.wall_ms() + self._random.choice((5_000, 60_000, 600_000))
        return OutgoingMessage(topic="reminders", body=b"call back", deliver_at_ms=at_ms)

    def _ticket(self) -> OutgoingMessage:
        return OutgoingMessage(topic="tickets", body=b"it does not work", priority=self._random.randrange(4))

    def _session(self) -> OutgoingMessage:
        session = f"session-{self._random.randrange(SESSIONS)}"
        return OutgoingMessage(topic="sessions", body=b"hello", lite_topic=session)

    def _producing(self, pause_s: float, message: Callable[[], OutgoingMessage]) -> Iterator[Part]:
        with MessagingClient(self._messaging) as producer:
            yield Part(pause_s, lambda: producer.send(message()))

    def _consuming(self, group: str, topic: str, pause_s: float, limit: int = BATCH) -> Iterator[Part]:
        with MessagingClient(self._messaging, subscription=Subscription(group=group, topic=topic)) as consumer:

            def act() -> None:
                for message in consumer.receive(limit=limit, invisible_s=30, wait_s=1):
                    consumer.acknowledge(message)

            yield Part(pause_s, act)

    def _never_acknowledging(self) -> Iterator[Part]:
        """Give up each message: after the last attempt that its group allows, it is a dead letter."""
        subscription = Subscription(group="invoicing", topic="orders", expression="cake")
        with MessagingClient(self._messaging, subscription=subscription) as consumer:
            yield Part(2.0, lambda: consumer.give_back(consumer.receive(limit=4, invisible_s=30, wait_s=1)))

    def _transferring(self) -> Iterator[Part]:
        """Send half messages: most are committed, some are rolled back, and some are left open."""
        requests = Requests(self._messaging.address, self._clock)
        with open_channel(self._messaging) as channel:
            stub: Any = MessagingServiceStub(channel)

            def call(method: str, request: Any) -> Any:
                return getattr(stub, method)(request, metadata=requests.metadata(), timeout=CALL_TIMEOUT_S)

            def act() -> None:
                message = requests.message(OutgoingMessage(topic="transfers", body=b"from one account to another"))
                message.system_properties.message_type = definition.TRANSACTION
                answer = call("SendMessage", service.SendMessageRequest(messages=[message]))
                require_ok(answer.status)
                [entry] = answer.entries
                choice = self._random.random()
                if choice < 0.1:
                    return
                end_request = service.EndTransactionRequest(
                    topic=message.topic,
                    message_id=entry.message_id,
                    transaction_id=entry.transaction_id,
                    resolution=definition.ROLLBACK if choice < 0.3 else definition.COMMIT,
                    source=definition.SOURCE_CLIENT,
                )
                require_ok(call("EndTransaction", end_request).status)

            yield Part(0.5, act)


@contextmanager
def _left_by_an_earlier_demo() -> Iterator[None]:
    """Ignore that a topic or a group exists already."""
    try:
        yield
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
