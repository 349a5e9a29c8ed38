"""One client that sends one by one, for brokers that refuse; and all that is there afterwards."""

from __future__ import annotations

from typing import Final

from tests.e2e.broker import Broker
from tests.e2e.load.raw_client import Refused
from tests.hostile.caller import Client

SEGMENT_SIZE: Final = 1 << 20
SETTINGS: Final[dict[str, object]] = {
    "store.segment_size": SEGMENT_SIZE,
    "store.queue_flush_size": "4MiB",
    "store.flush_interval_ms": 50,
    "limits.body_size": "256KiB",
    "topics.default_queues": 2,
    "delivery.polling_min_ms": 0,
    "delivery.polling_max_ms": 200,
}
TOPIC: Final = "orders"


class Sender:
    """Sends one by one, and knows what was acknowledged and in which words the others were refused."""

    def __init__(self, client: Client, *, prefix: str = "m") -> None:
        self._client = client
        self._prefix = prefix
        self._count = 0
        self.acknowledged: set[str] = set()
        self.refusals: list[str] = []

    def send(self, count: int, *, size: int = 1000) -> int:
        """How many of them were acknowledged."""
        before = len(self.acknowledged)
        for _ in range(count):
            self._count += 1
            message_id = f"{self._prefix}{self._count:05d}"
            try:
                self._client.send(TOPIC, message_id, size)
            except Refused as refused:
                self.refusals.append(str(refused))
            else:
                self.acknowledged.add(message_id)
        return len(self.acknowledged) - before


def harvest(client: Client, group: str) -> set[str]:
    """All that a group gets, received and acknowledged."""
    client.subscribe(group, TOPIC)
    got: set[str] = set()
    while received := client.receive(group, TOPIC, polling_s=0.2):
        got.update(received)
    return got


def all_messages(broker: Broker, group: str) -> set[str]:
    with Client(broker.endpoint) as client:
        return harvest(client, group)
