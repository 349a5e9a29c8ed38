"""Who is there to get messages of lite topics, and of which of them there may be some."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quarry_mq.server.delivery.state.subscription import WaitingPoll

ATTEMPTS_KEPT: Final = 16
"""Receives of one client whose messages are known, should it ask for them again."""


class LiteClient:
    """One client of a group, while it receives.

    What it is subscribed to are rows; here is which of its lite topics may have something, least recently served
    first, and how far its rows have been looked through for that. It is a source of `server.delivery.long_poll`.
    """

    __slots__ = (
        "_attempts",
        "client_id",
        "events_max",
        "group",
        "last_used_s",
        "looked_behind",
        "looked_key",
        "ready",
        "waiting",
        "wants_all",
    )

    def __init__(self, group: LiteGroupClients, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self.events_max = 0
        """How many lite topics are kept ready; of more, the others are looked for when these are done."""
        self.ready: dict[str, None] = {}
        self.looked_behind: str | None = ""
        """Up to which lite topic its rows were looked through; None: all were."""
        self.looked_key = b""
        """The same of a client that wants all lite topics there are, of which it has no rows."""
        self.wants_all = False
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        self.last_used_s = 0.0
        self._attempts: OrderedDict[str, Sequence[str]] = OrderedDict()

    @property
    def may_have_messages(self) -> bool:
        return bool(self.ready) or self.looked_behind is not None

    def want_all(self, *, wants_all: bool) -> None:
        """All lite topics of its group's kind from now on, or no longer."""
        self.wants_all = wants_all
        if wants_all:
            self.group.wanting_all[self.client_id] = None
        else:
            self.group.wanting_all.pop(self.client_id, None)

    def mark(self, lite_topic: str) -> None:
        """There may be messages of it."""
        if lite_topic in self.ready:
            return
        if len(self.ready) < self.events_max:
            self.ready[lite_topic] = None
        else:
            self.look_again()

    def look_again(self) -> None:
        """At all that it wants."""
        self.looked_behind, self.looked_key = "", b""

    def mark_first(self, lite_topics: Iterable[str]) -> None:
        """Have these served before the others."""
        self.ready = {**dict.fromkeys(lite_topics), **self.ready}

    def served(self, lite_topic: str, *, has_more: bool) -> None:
        """Put it behind the others, or off the list."""
        self.ready.pop(lite_topic, None)
        if has_more:
            self.ready[lite_topic] = None

    def got(self, attempt_id: str, lite_topics: Sequence[str]) -> None:
        """A receive of this attempt was given messages of these."""
        if attempt_id and lite_topics:
            self._attempts[attempt_id] = lite_topics
            if len(self._attempts) > ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)

    def has_given(self, attempt_id: str) -> bool:
        """See `server.delivery.state.subscription.Source`."""
        return bool(self.got_by(attempt_id))

    def got_by(self, attempt_id: str) -> Sequence[str]:
        return self._attempts.get(attempt_id, ()) if attempt_id else ()


class LiteGroupClients:
    """The clients of one group that receive."""

    __slots__ = ("_turn", "clients", "name", "parent", "wanting_all", "wildcard")

    def __init__(self, name: str, parent: str) -> None:
        self.name = name
        self.parent = parent
        self.wildcard = ""
        """How the lite topics begin that clients get which want all of them."""
        self.clients: dict[str, LiteClient] = {}
        self.wanting_all: dict[str, None] = {}
        """Those among them that want all lite topics, by their ids: each message asks, so nobody looks through all."""
        self._turn = 0

    def of(self, client_ids: Iterable[str]) -> Sequence[LiteClient]:
        """Those that are there, each time another one first."""
        found = [client for each in client_ids if (client := self.clients.get(each)) is not None]
        if len(found) < 2:
            return found
        self._turn += 1
        first = self._turn % len(found)
        return found[first:] + found[:first]


class LiteClients:
    """All groups' clients that receive, by client and by the topic that their groups are bound to."""

    def __init__(self) -> None:
        self._groups: dict[str, LiteGroupClients] = {}
        self._of_parent: dict[str, dict[str, LiteGroupClients]] = {}
        self._by_client: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_client)

    def __iter__(self) -> Iterator[LiteClient]:
        return iter([client for group in self._groups.values() for client in group.clients.values()])

    def find(self, group: str, client_id: str) -> LiteClient | None:
        found = self._groups.get(group)
        return None if found is None else found.clients.get(client_id)

    def group(self, name: str) -> LiteGroupClients | None:
        return self._groups.get(name)

    def groups_of(self, parent: str) -> Sequence[LiteGroupClients]:
        return tuple(self._of_parent.get(parent, {}).values())

    def of(self, group: str, parent: str, client_id: str) -> LiteClient:
        """The client, made if it is not there; it has one group at a time."""
        client = self.find(group, client_id)
        if client is not None and client.group.parent == parent:
            return client
        self.remove(client_id)
        clients = self._groups.get(group)
        if clients is None:
            clients = self._groups[group] = LiteGroupClients(group, parent)
            self._of_parent.setdefault(parent, {})[group] = clients
        client = clients.clients[client_id] = LiteClient(clients, client_id)
        self._by_client[client_id] = group
        return client

    def remove(self, client_id: str) -> LiteClient | None:
        """Returns the one that was there."""
        name = self._by_client.pop(client_id, None)
        if name is None:
            return None
        group = self._groups[name]
        client = group.clients.pop(client_id)
        group.wanting_all.pop(client_id, None)
        if not group.clients:
            del self._groups[name]
            of_parent = self._of_parent[group.parent]
            del of_parent[name]
            if not of_parent:
                del self._of_parent[group.parent]
        return client
