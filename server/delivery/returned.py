"""Return of messages that were handed out in an answer which was not delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.receipt_handle import ReceiptHandle
from quarry_mq.server.delivery.state.subscription import GroupMessage
from quarry_mq.server.errors import InvalidReceiptHandle

Named = Callable[[str, str, str], tuple[ReceiptHandle, GroupMessage]]
"""Function that decodes a handle of a group and a topic and finds its message. Raises InvalidReceiptHandle."""


class Returning:
    """Gives messages back whose answer was not delivered.

    A hand-out is written before its answer, so the death of the process takes nothing from a client. Therefore a
    hand-out whose answer never left is undone afterwards. If the process dies in between, the hand-out stays as it is
    written.
    """

    def __init__(self, deliveries: Deliveries, named: Named) -> None:
        self._deliveries = deliveries
        self._named = named

    def undeliverable(self, group: str, topic: str, handles: Iterable[str], *, has_begun: bool) -> None:
        """Give back the messages of the handles, after a second if a part of the answer left (`has_begun`).

        Otherwise they are given back at once and uncounted: no client has seen them, so it was no attempt.
        """
        for handle in handles:
            try:
                decoded, message = self._named(group, topic, handle)
                if has_begun:
                    self._deliveries.give_back(message, self._deliveries.standing(message, decoded))
                    continue
            except InvalidReceiptHandle:
                continue  # acknowledged by a client that got it after all, or visible already
            row = self._deliveries.row(message)
            if row is not None and row.delivery_id == decoded.delivery_id:
                # also if its time is up meanwhile: it must not count as an attempt
                self._deliveries.give_back(message, row, is_counted=False)
