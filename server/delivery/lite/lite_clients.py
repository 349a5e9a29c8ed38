"""The clients that receive messages of lite topics, and which of their lite topics may have some."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from quarry_mq.server.delivery.state.subscription import WaitingPoll

ATTEMPTS_KEPT: Final = 16
"""Receives of one client whose messages are remembered, in case the client repeats them."""


class LiteClient:
    """Describe one client of a group, kept while it receives.

    Its subscriptions are rows. This object holds which of its lite topics may have messages, least recently served
    first, and how far its rows were scanned for them. It is a source of `server.delivery.long_poll`.
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
        """Number of lite topics that are kept ready; further ones are scanned for when these are done."""
        self.ready: dict[str, None] = {}
        self.looked_behind: str | None = ""
        """The last lite topic up to which its rows were scanned; None: all were."""
        self.looked_key = b""
        """The key up to which all lite topics were scanned, for a client that is subscribed to all and has no rows of
        them.
        """
        self.wants_all = False
        self.waiting: OrderedDict[WaitingPoll, None] = OrderedDict()
        self.last_used_s = 0.0
        self._attempts: OrderedDict[str, Sequence[str]] = OrderedDict()

    @property
    def may_have_messages(self) -> bool:
        return bool(self.ready) or self.looked_behind is not None

    def want_all(self, *, wants_all: bool) -> None:
        """Note whether the client is subscribed to all lite topics that its group's wildcard covers."""
        self.wants_all = wants_all
        if wants_all:
            self.group.wanting_all[self.client_id] = None
        else:
            self.group.wanting_all.pop(self.client_id, None)

    def mark(self, lite_topic: str) -> None:
        """Note that the lite topic may have messages."""
        if lite_topic in self.ready:
            return
        if len(self.ready) < self.events_max:
            self.ready[lite_topic] = None
        else:
            self.look_again()

    def look_again(self) -> None:
        """Start again to scan all lite topics that the client is subscribed to."""
        self.looked_behind, self.looked_key = "", b""

    def mark_first(self, lite_topics: Iterable[str]) -> None:
        """Put these lite topics first, so that they are served before the others."""
        self.ready = {**dict.fromkeys(lite_topics), **self.ready}

    def served(self, lite_topic: str, *, has_more: bool) -> None:
        """Put the lite topic last, or remove it from the list if it has no more messages."""
        self.ready.pop(lite_topic, None)
        if has_more:
            self.ready[lite_topic] = None

    def got(self, attempt_id: str, lite_topics: Sequence[str]) -> None:
        """Remember of which lite topics a receive with this attempt id got messages."""
        if attempt_id and lite_topics:
            self._attempts[attempt_id] = lite_topics
            if len(self._attempts) > ATTEMPTS_KEPT:
                self._attempts.popitem(last=False)

    def has_given(self, attempt_id: str) -> bool:
        """Return whether a receive with this attempt id got messages (`server.delivery.state.subscription.Source`)."""
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
        """Prefix of the lite topics that a client gets which is subscribed to all."""
        self.clients: dict[str, LiteClient] = {}
        self.wanting_all: dict[str, None] = {}
        """Ids of the clients that are subscribed to all lite topics, kept apart since each message needs them."""
        self._turn = 0

    def of(self, client_ids: Iterable[str]) -> Sequence[LiteClient]:
        """Return the present ones of these clients, rotated, so that each call begins with another one."""
        found = [client for each in client_ids if (client := self.clients.get(each)) is not None]
        if len(found) < 2:
            return found
        self._turn += 1
        first = self._turn % len(found)
        return found[first:] + found[:first]


class LiteClients:
    """The receiving clients of all groups, by client and by the topic that their groups are bound to."""

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
        """Return the client, created if necessary. A client has one group at a time."""
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
        """Remove a client and return it, or None if it was not there."""
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
