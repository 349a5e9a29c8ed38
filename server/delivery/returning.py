"""What becomes of messages that were handed out in an answer which did not get through."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from server.delivery.deliveries import Deliveries
from server.delivery.receipt_handle import ReceiptHandle, topic_of
from server.delivery.subscription import GroupMessage
from server.errors import InvalidReceiptHandle

DeliveredFrom = Callable[[str, str, ReceiptHandle], GroupMessage]
"""Finds where a handle's delivery was made, of a group and a topic. Raises InvalidReceiptHandle."""


class Returning:
    """Gives them back.

    A hand-out is written before its answer: a client holds nothing that the death of the process can take back. So a
    hand-out whose answer never left is undone afterwards. If the process dies in between it stays as it is written.
    """

    def __init__(self, deliveries: Deliveries, delivered_from: DeliveredFrom) -> None:
        self._deliveries = deliveries
        self._delivered_from = delivered_from

    def undeliverable(self, group: str, topic: str, handles: Iterable[str], *, has_begun: bool) -> None:
        """Give back what the handles name: after a second if a part of the answer left (`has_begun`).

        Otherwise at once, and as if it had not been handed out: nobody has seen it, so it is no attempt.
        """
        for handle in handles:
            its_topic = topic_of(handle, topic)
            decoded = ReceiptHandle.decode(handle, group, its_topic)
            try:
                message = self._delivered_from(group, its_topic, decoded)
                if has_begun:
                    self._deliveries.give_back(message, self._deliveries.standing(message, decoded))
                    continue
            except InvalidReceiptHandle:
                continue  # acknowledged by a client that got it after all, or visible already
            row = self._deliveries.row(message)
            if row is not None and row.delivery_id == decoded.delivery_id:
                # also where its time is up meanwhile: the count must not stay
                self._deliveries.give_back(message, row, is_counted=False)
