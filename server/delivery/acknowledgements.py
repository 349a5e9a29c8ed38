"""The fast path for acknowledgements of many messages at once: it ends the clear cases in few steps."""

from __future__ import annotations

from collections.abc import Sequence

from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.open_subscriptions import OpenSubscriptions
from quarry_mq.server.delivery.receipt_handle import ReceiptHandle
from quarry_mq.server.delivery.state.subscription import QueueProgress
from quarry_mq.store.offsets import QueueOffset


class Acknowledging:
    """Ends deliveries in the clear cases, and reports which they were.

    A case is clear if the group consumes the topic without order and has the subscription in memory, and if the message
    is from one of the topic's own queues and its row is written, unchanged and hidden by its time.
    """

    def __init__(self, subscriptions: OpenSubscriptions, deliveries: Deliveries) -> None:
        self._subscriptions = subscriptions
        self._deliveries = deliveries

    def acknowledge(self, group: str, topic: str, handles: Sequence[ReceiptHandle]) -> list[bool]:
        """Acknowledge the messages of clear cases as `Delivery.acknowledge` does, and return which they are.

        Nothing is done about the others.
        """
        subscription = self._subscriptions.find(group, topic)
        if subscription is None or subscription.is_ordered or subscription.is_retry:
            return [False] * len(handles)
        places: list[tuple[QueueProgress, QueueOffset]] = []
        indexes: list[int] = []
        seen: set[tuple[int, int]] = set()
        for index, (number, offset, _, _) in enumerate(handles):
            progress = subscription.queues.get(number)
            if progress is None or offset in progress.unwritten or (number, offset) in seen:
                continue
            seen.add((number, offset))
            places.append((progress, QueueOffset(offset)))
            indexes.append(index)
        done = [False] * len(handles)
        ids = [handles[index].delivery_id for index in indexes]
        ended = self._deliveries.end_standing(subscription, places, ids)
        for index, is_ended in zip(indexes, ended, strict=True):
            done[index] = is_ended
        return done
