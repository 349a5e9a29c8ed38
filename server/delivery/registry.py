"""Who is subscribed to what, and which client holds which messages: the indexes of delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from server.delivery.subscription import Subscription, WaitingPoll
from store.offsets import QueueOffset


class Subscriptions:
    """The subscriptions in memory, by group and topic and by topic."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], Subscription] = {}
        self._by_topic: dict[str, list[Subscription]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self._by_name.values()))

    def find(self, group: str, topic: str) -> Subscription | None:
        return self._by_name.get((group, topic))

    def of(self, group: str, topic: str) -> Subscription:
        """The subscription, made if it is not there."""
        subscription = self._by_name.get((group, topic))
        if subscription is None:
            subscription = self._by_name[group, topic] = Subscription(group, topic)
            self._by_topic.setdefault(topic, []).append(subscription)
        return subscription

    def of_topic(self, topic: str) -> Sequence[Subscription]:
        return self._by_topic.get(topic, ())

    def remove(self, subscription: Subscription) -> None:
        del self._by_name[subscription.group, subscription.topic]
        of_topic = self._by_topic[subscription.topic]
        of_topic.remove(subscription)
        if not of_topic:
            del self._by_topic[subscription.topic]


class WaitingPolls:
    """The receives that wait, by the client that made them."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[WaitingPoll, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[WaitingPoll]:
        return iter([poll for polls in self._by_client.values() for poll in polls])

    def of_client(self, client_id: str) -> Sequence[WaitingPoll]:
        return tuple(self._by_client.get(client_id, ()))

    def add(self, poll: WaitingPoll) -> None:
        poll.subscription.waiting[poll] = None
        self._by_client.setdefault(poll.request.client_id, {})[poll] = None
        self._count += 1

    def remove(self, poll: WaitingPoll) -> None:
        """The poll is over: its timer will not fire any more."""
        poll.finish()
        del poll.subscription.waiting[poll]
        of_client = self._by_client[poll.request.client_id]
        del of_client[poll]
        if not of_client:
            del self._by_client[poll.request.client_id]
        self._count -= 1


class Leases:
    """The messages that the server keeps hidden for a client as long as it lives."""

    def __init__(self) -> None:
        self._by_client: dict[str, set[tuple[Subscription, int, QueueOffset]]] = {}

    def add(self, client_id: str, subscription: Subscription, number: int, offset: QueueOffset) -> None:
        self._by_client.setdefault(client_id, set()).add((subscription, number, offset))

    def discard(self, client_id: str, subscription: Subscription, number: int, offset: QueueOffset) -> None:
        of_client = self._by_client.get(client_id)
        if of_client is not None:
            of_client.discard((subscription, number, offset))
            if not of_client:
                del self._by_client[client_id]

    def of_client(self, client_id: str) -> Sequence[tuple[Subscription, int, QueueOffset]]:
        return tuple(self._by_client.get(client_id, ()))
