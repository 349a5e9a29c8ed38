"""Official clients at work on a cluster: ordinary messages and message groups, sent and consumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

from tests.e2e.broker import until
from tests.e2e.clients import ClientError, ClientProcess, Clients, Outgoing, Producer, PushConsumer, SimpleConsumer
from tests.e2e.ledger import ANSWER_TIMEOUT_S, INVISIBLE_S, PAUSE_S, Workers
from tests.e2e.load_record import LoadRecord, body_of
from tests.e2e.members import ClusterOfBrokers, names

ORDERS: Final = "orders"
LEDGER: Final = "ledger"
"""The topic of message groups."""
QUEUES: Final = 4
BILLING: Final = "billing"
BOOKING: Final = "booking"
"""The consumer group that gets message groups in order."""
LANGUAGES: Final = ("java", "python")
GROUPS_PER_PRODUCER: Final = 5
ORDERS_PER_CALL: Final = 5
BETWEEN_CALLS_S: Final = 0.1
"""Producers are slower than consumers: what is delivered late is late because of brokers."""
ALL_DELIVERED_S: Final = 240.0
"""What a kill has lost on the way to a push consumer comes again after two leases, of 60 s each."""

SEND_ORDERS: Final = "sends-orders"
SEND_LEDGER: Final = "sends-ledger"
CONSUME: Final = "consumes"


class ClusterLoad:
    """Of each language one producer of ordinary messages, one of message groups, and a consumer of either."""

    def __init__(self, cluster: ClusterOfBrokers) -> None:
        self._cluster = cluster
        self._workers = Workers()
        self._processes: list[ClientProcess] = []
        self._consumers: list[ClientProcess] = []
        self.record = LoadRecord()

    def start(self, start_clients: Callable[[str, str], Clients]) -> None:
        """Make topics and groups, then begin. Clients know the addresses of all members there are now."""
        self._make_names()
        endpoints = ";".join(broker.endpoint for broker in self._cluster.brokers)
        for language in LANGUAGES:
            clients = start_clients(language, endpoints)
            self._consume(clients, language)
            self._send(f"{SEND_ORDERS}-{language}", clients.producer(ORDERS), self._send_orders)
            self._send(f"{SEND_LEDGER}-{language}", clients.producer(LEDGER), self._send_ledger)

    @contextmanager
    def consumers_standing_still(self) -> Iterator[None]:
        """What is sent meanwhile waits: only then it shows whether a member hands out what another one has to first."""
        with ExitStack() as stack:
            for consumer in self._consumers:
                stack.enter_context(consumer.standing_still())
            yield

    def finish(self) -> None:
        """Stop sending, and wait until all has been delivered, or for as long as that may take."""
        self._workers.stop("producer")
        with suppress(AssertionError):
            until(lambda: not self.record.lost(), "all is delivered", timeout_s=ALL_DELIVERED_S)
        self._workers.stop("consumer")
        for process in self._processes:
            process.kill()  # the shutdown of a client that is about to connect again may fail

    def abandon(self) -> None:
        """Something has failed elsewhere."""
        self._workers.abandon()
        for process in self._processes:
            process.kill()

    def stats(self) -> dict[str, Any]:
        record = self.record
        raised = record.refusals_of(SEND_ORDERS)
        return {
            "acknowledged": record.acknowledged_count,
            "deliveries": record.deliveries,
            "delivered_by": record.delivered_by(),
            "lost": len(record.lost()),
            "message_groups": len(record.message_groups),
            "breaks": len(record.breaks()),
            "ordinary_sends": record.acknowledged_of(SEND_ORDERS),
            "ordinary_sends_raised": len(raised),
            "ordinary_sends_raised_by": record.refused(SEND_ORDERS),
            "ordinary_sends_raised_first": [(each.text[:300], round(each.at_s, 1)) for each in raised[:3]],
            "group_sends_repeated": record.repeated_sends,
            "group_send_longest_s": {who: round(took_s, 1) for who, took_s in record.longest_send_s.items()},
            "consumers_raised": record.refused(CONSUME),
        }

    def _make_names(self) -> None:
        first = self._cluster.brokers[0]
        first.administer("topic", "create", ORDERS, "--queues", str(QUEUES))
        first.administer("topic", "create", LEDGER, "--queues", str(QUEUES), "--type", "fifo")
        first.administer("group", "create", BILLING)
        first.administer("group", "create", BOOKING, "--fifo")
        self._cluster.agree(
            lambda broker: (names(broker, "topic"), names(broker, "group")), ([LEDGER, ORDERS], [BILLING, BOOKING])
        )

    def _consume(self, clients: Clients, language: str) -> None:
        """One language consumes the one topic as it comes and the other by asking, the other language otherwise."""
        pushed, asked = (LEDGER, ORDERS) if language == LANGUAGES[0] else (ORDERS, LEDGER)
        group_of = {ORDERS: BILLING, LEDGER: BOOKING}
        push = clients.push_consumer(pushed, group=group_of[pushed])
        simple = clients.simple_consumer(asked, group=group_of[asked], await_s=1)
        self._processes += [push, simple]
        self._consumers += [push, simple]
        self._work("consumer", partial(self._take_pushed, push, f"{CONSUME}-{pushed}-{language}"))
        self._work("consumer", partial(self._take_asked, simple, f"{CONSUME}-{asked}-{language}"))

    def _send(self, who: str, producer: Producer, work: Callable[[Producer, str, threading.Event], None]) -> None:
        self._processes.append(producer)
        self._work("producer", partial(work, producer, who))

    def _work(self, kind: str, work: Callable[[threading.Event], None]) -> None:
        def guarded(stop: threading.Event) -> None:
            try:
                work(stop)
            except (AssertionError, TimeoutError, OSError) as error:  # a client that has ended, or answers no more
                self.record.note_fault(f"{kind}: {error}")

        self._workers.start(kind, guarded)

    def _send_orders(self, producer: Producer, who: str, stop: threading.Event) -> None:
        """Each once: what the client library raises is not sent again."""
        number = 0
        while not stop.is_set():
            numbers = range(number, number + ORDERS_PER_CALL)
            number += ORDERS_PER_CALL
            messages = [Outgoing(ORDERS, body_of(who, each).encode()).line() for each in numbers]
            for each, receipt in zip(numbers, self._sent(producer, who, messages), strict=True):
                if "error" not in receipt:
                    self.record.note_acknowledged(who, each)
            stop.wait(BETWEEN_CALLS_S)

    def _send_ledger(self, producer: Producer, who: str, stop: threading.Event) -> None:
        """The next message of each group, or again the one that was not acknowledged."""
        groups = [f"{who}-{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"[:GROUPS_PER_PRODUCER]]
        self.record.message_groups.update(groups)
        number_of = dict.fromkeys(groups, 0)
        began_s: dict[str, float] = {}
        while not stop.is_set():
            for group in groups:
                began_s.setdefault(group, time.monotonic())
            messages = [
                Outgoing(LEDGER, body_of(group, number).encode(), message_group=group).line()
                for group, number in number_of.items()
            ]
            for group, receipt in zip(groups, self._sent(producer, who, messages), strict=True):
                if "error" in receipt:
                    self.record.note_repeated(who)
                    continue
                self.record.note_acknowledged(group, number_of[group])
                self.record.note_group_sent(who, time.monotonic() - began_s.pop(group))
                number_of[group] += 1
            stop.wait(BETWEEN_CALLS_S)

    def _sent(self, producer: Producer, who: str, messages: Sequence[object]) -> list[dict[str, Any]]:
        began_s = time.monotonic()
        receipts: list[dict[str, Any]] = producer.request("send", messages=messages, timeout_s=ANSWER_TIMEOUT_S)[
            "receipts"
        ]
        for receipt in receipts:
            if "error" in receipt:
                self.record.note_refused(who, receipt["error"]["type"], receipt["error"]["text"], began_s)
        return receipts

    def _take_pushed(self, consumer: PushConsumer, who: str, stop: threading.Event) -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                self.record.note_delivered(who, [consumer.next_delivery(timeout_s=PAUSE_S)])

    def _take_asked(self, consumer: SimpleConsumer, who: str, stop: threading.Event) -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            try:
                deliveries = consumer.receive(invisible_s=INVISIBLE_S)
                self.record.note_delivered(who, deliveries)
                numbers = [each.number for each in deliveries]
                results = consumer.request("ack", deliveries=numbers, timeout_s=ANSWER_TIMEOUT_S)["results"]
            except ClientError as error:
                self.record.note_refused(who, error.kind, str(error), began_s)
                stop.wait(PAUSE_S)
                continue
            for failure in (result["error"] for result in results if "error" in result):
                self.record.note_refused(who, f"acknowledgement: {failure['type']}", failure["text"], began_s)
