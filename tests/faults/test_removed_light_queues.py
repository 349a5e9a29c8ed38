"""A power cut takes the note on a removed light queue, and not what was stored after the removal."""

from __future__ import annotations

from random import Random

import pytest

from quarry_mq.store.message import QueueId, QueueOffset
from quarry_mq.store.settings import Durability
from tests.faults.machine import Broker, Machine, Sending

ORDERS, LIGHT, LONGER = QueueId("orders", 0), QueueId("%LMQ%a", 0), QueueId("%LMQ%b", 0)


def remove(broker: Broker, queue: QueueId) -> None:
    """Remove a light queue as the broker does it."""
    messages = broker.store.messages
    ended = messages.light_queues_ended(messages.appended_up_to, b"").ended
    batch = broker.store.state_engine.batch()
    broker.store.offsets.delete_topic(batch, queue.topic)
    broker.store.state_engine.write(batch)
    messages.remove_ended(messages.still_ended([each for each in ended if each.queue == queue]))


def offsets(broker: Broker) -> list[int]:
    return [each.queue_offset for each in broker.store.messages.entries(LIGHT, QueueOffset(0), 100)]


class Unlucky(Random):
    """The chance of a machine whose databases keep nothing in a crash but what was flushed."""

    def randint(self, a: int, b: int) -> int:
        return a


def begun(durability: Durability) -> tuple[Machine, Broker]:
    """A store whose light floor is above the offsets of `LIGHT`: its removal does not raise the floor."""
    machine = Machine(3, durability)
    machine.kernel.chance = Unlucky(3)
    broker = machine.start()
    broker.create_topic(ORDERS.topic)
    broker.send([Sending(ORDERS, 50, (LONGER.topic,)) for _ in range(4)])
    broker.send([Sending(ORDERS, 50, (LIGHT.topic,)) for _ in range(2)])
    broker.flush()
    broker.flush_queues()
    remove(broker, LONGER)
    broker.flush_queues()
    broker.save_checkpoint()
    return machine, broker


@pytest.mark.parametrize("durability", list(Durability))
def test_removed_messages_do_not_come_back_among_new_ones(durability: Durability) -> None:
    machine, broker = begun(durability)
    remove(broker, LIGHT)
    broker.send([Sending(ORDERS, 50, (LIGHT.topic,))])
    broker.flush()
    assert offsets(broker) == [4]
    machine.crash(power_loss=True)
    assert offsets(machine.start()) == [4]


@pytest.mark.parametrize("durability", list(Durability))
def test_removed_messages_do_not_come_back_with_a_rebuild(durability: Durability) -> None:
    machine, broker = begun(durability)
    remove(broker, LIGHT)
    broker.store.messages.flush_queues()
    machine.crash(power_loss=True)
    broker = machine.start()
    assert offsets(broker) == []
    broker.stop()
    assert offsets(machine.start(rebuild_queues=True)) == []
