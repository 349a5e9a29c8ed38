"""What becomes of messages that were handed out in an answer which did not get through."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from quarry_mq.server.delivery.deliveries import Deliveries
from quarry_mq.server.delivery.receipt_handle import ReceiptHandle
from quarry_mq.server.delivery.state.subscription import GroupMessage
from quarry_mq.server.errors import InvalidReceiptHandle

Named = Callable[[str, str, str], tuple[ReceiptHandle, GroupMessage]]
"""What a handle of a group and a topic says, and of which message. Raises InvalidReceiptHandle."""


class Returning:
    """Gives them back.

    A hand-out is written before its answer: a client holds nothing that the death of the process can take back. So a
    hand-out whose answer never left is undone afterwards. If the process dies in between it stays as it is written.
    """

    def __init__(self, deliveries: Deliveries, named: Named) -> None:
        self._deliveries = deliveries
        self._named = named

    def undeliverable(self, group: str, topic: str, handles: Iterable[str], *, has_begun: bool) -> None:
        """Give back what the handles name: after a second if a part of the answer left (`has_begun`).

        Otherwise at once, and as if it had not been handed out: nobody has seen it, so it is no attempt.
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
                # also where its time is up meanwhile: the count must not stay
                self._deliveries.give_back(message, row, is_counted=False)
