"""Indexes of delivery: subscriptions by name, waiting receives by client, and leases by client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from quarry_mq.server.delivery.model import ReceiveRequest
from quarry_mq.server.delivery.retry_topics import RetryTopic
from quarry_mq.server.delivery.state.subscription import Subscription, WaitingPoll
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.filters import MessageFilter
from quarry_mq.server.settings.broker_settings import BrokerSettings

FILTERS_LENGTH_MAX: Final = 1024 * 1024
"""Characters of all distinct filters of waiting receives: 160 MB at most."""


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
        """Return the subscription, created if necessary."""
        subscription = self._by_name.get((group, topic))
        if subscription is None:
            subscription = self._by_name[group, topic] = Subscription(group, topic)
            self._by_topic.setdefault(topic, []).append(subscription)
        return subscription

    def attach(self, owner: Subscription, retry_topic: RetryTopic) -> Subscription:
        """Attach the subscription of a retry topic to its owner, whose receives get its messages. Return it."""
        companion = self.of(owner.group, retry_topic.name)
        companion.first_number = retry_topic.first_number
        owner.attach(companion)
        return companion

    def of_topic(self, topic: str) -> Sequence[Subscription]:
        return self._by_topic.get(topic, ())

    def remove(self, subscription: Subscription) -> None:
        """Remove the subscription together with its owner and all retry topics of the owner."""
        for part in subscription.owner.parts:
            del self._by_name[part.group, part.topic]
            of_topic = self._by_topic[part.topic]
            of_topic.remove(part)
            if not of_topic:
                del self._by_topic[part.topic]


class HeldFilters:
    """The filters of waiting receives. Most are the same object, since equal expressions usually are."""

    def __init__(self) -> None:
        self._uses: dict[int, int] = {}
        """Uses by the filter's `id`, which is unique as long as a receive holds the filter."""
        self._length = 0

    def check(self, wanted: MessageFilter) -> None:
        """Raise OverLimit if there is no space for another distinct filter."""
        if id(wanted) not in self._uses and self._length + wanted.length > FILTERS_LENGTH_MAX:
            raise OverLimit("waiting_filters", "too many different filter expressions are waiting for messages")

    def add(self, wanted: MessageFilter) -> None:
        uses = self._uses.get(id(wanted), 0)
        self._uses[id(wanted)] = uses + 1
        if not uses:
            self._length += wanted.length

    def remove(self, wanted: MessageFilter) -> None:
        uses = self._uses[id(wanted)] - 1
        if uses:
            self._uses[id(wanted)] = uses
        else:
            del self._uses[id(wanted)]
            self._length -= wanted.length


class WaitingPolls:
    """The waiting receives, by the client that made them."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._filters = HeldFilters()
        self._by_client: dict[str, dict[WaitingPoll, None]] = {}
        self._count = 0
        self.configure(settings)

    def configure(self, settings: BrokerSettings) -> None:
        self._count_max = settings.delivery.waiting_polls_max
        self._per_client_max = settings.limits.waiting_polls_per_client

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[WaitingPoll]:
        return iter([poll for polls in self._by_client.values() for poll in polls])

    def of_client(self, client_id: str) -> Sequence[WaitingPoll]:
        return tuple(self._by_client.get(client_id, ()))

    def require_room(self, request: ReceiveRequest) -> None:
        """Check that one more receive may wait. Raises OverLimit."""
        if self._count >= self._count_max:
            raise OverLimit("waiting_polls", f"polling full: {self._count} receives are waiting already")
        of_client = len(self._by_client.get(request.client_id, ()))
        if of_client >= self._per_client_max:
            raise OverLimit(
                "waiting_polls_per_client", f"polling full: {of_client} receives of this client are waiting already"
            )
        self._filters.check(request.filter)

    def add(self, poll: WaitingPoll) -> None:
        self._filters.add(poll.request.filter)
        poll.source.waiting[poll] = None
        self._by_client.setdefault(poll.request.client_id, {})[poll] = None
        self._count += 1

    def remove(self, poll: WaitingPoll) -> None:
        """Remove a poll that is over; its timer will not fire any more."""
        poll.finish()
        self._filters.remove(poll.request.filter)
        del poll.source.waiting[poll]
        of_client = self._by_client[poll.request.client_id]
        del of_client[poll]
        if not of_client:
            del self._by_client[poll.request.client_id]
        self._count -= 1


class Lessees:
    """Counts, per client, the leased messages by group and topic: those kept hidden as long as the client is alive."""

    def __init__(self) -> None:
        self._by_client: dict[str, dict[tuple[str, str], int]] = {}

    def add(self, client_id: str, group: str, topic: str, count: int = 1) -> None:
        """Add to the number of messages leased to the client."""
        of_client = self._by_client.setdefault(client_id, {})
        of_client[group, topic] = of_client.get((group, topic), 0) + count

    def remove(self, client_id: str, group: str, topic: str) -> None:
        """Remove one message. Leases from before the broker's start were never counted, and are ignored."""
        of_client = self._by_client.get(client_id, {})
        count = of_client.get((group, topic))
        if count is None:
            return
        if count > 1:
            of_client[group, topic] = count - 1
            return
        del of_client[group, topic]
        if not of_client:
            del self._by_client[client_id]

    def forget(self, client_id: str) -> Sequence[tuple[str, str]]:
        """Remove a client that is gone; return the groups and topics on which it held messages."""
        return tuple(self._by_client.pop(client_id, ()))
