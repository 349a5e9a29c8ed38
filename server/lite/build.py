"""Builds the lite subscriptions of a broker from its other parts."""

from __future__ import annotations

from collections.abc import Callable

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.clients import ClientRegistry
from quarry_mq.server.delivery import Delivery, StateWriter
from quarry_mq.server.lite.starts import offset_of
from quarry_mq.server.lite.subscriptions import LiteSubscriptions
from quarry_mq.store.metadata.lite_subscriptions import LiteSubscriptionTable
from quarry_mq.store.opening.open_store import OpenStore


def make_lite_subscriptions(
    store: OpenStore,
    *,
    writer: StateWriter,
    delivery: Delivery,
    clients: ClientRegistry,
    taken_away: Callable[[str, str], None],
    clock: Clock,
) -> LiteSubscriptions:
    """Build the lite subscriptions and connect them to lost clients; `taken_away` is as in `LiteSubscriptions`."""
    subscriptions = LiteSubscriptions(
        LiteSubscriptionTable(store.state_engine),
        writer=writer,
        delivery=delivery.lite,
        queues=delivery.light_queues,
        start_of=lambda queue, start: offset_of(store.messages, queue, start),
        taken_away=taken_away,
        clock=clock,
    )

    def lost(client_id: str) -> None:
        # a client that has only lost its streams may come back, and keeps its subscriptions
        if clients.find(client_id) is None:
            subscriptions.client_gone(client_id)

    clients.on_lost(lost)
    return subscriptions
