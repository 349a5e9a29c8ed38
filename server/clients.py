"""Keep the settings, telemetry streams and last sign of life of every client.

A client is known from its first settings until it says goodbye or has been silent for `delivery.client_silent_ms`. Its
telemetry streams may come and go in between: clients open one per endpoint, and some reopen a lost one only
minutes later. Everything runs on the event loop's thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from quarry_mq.protocol.clock import Clock
from quarry_mq.server.errors import OverLimit
from quarry_mq.server.front import Call
from quarry_mq.server.settings.broker_settings import BrokerSettings
from quarry_mq.server.wire.settings import ClientKind, ClientSettings


@dataclass(slots=True)
class Client:
    """A known client. `streams` are its open telemetry streams; the one that last sent settings comes last.

    `owner` is the user that registered it, if authentication is on; `peer` is the address (`ip:port`) from which
    its settings came last, and `settings_ms` when that was.
    """

    client_id: str
    settings: ClientSettings
    last_seen_s: float
    owner: str | None = None
    peer: str = ""
    settings_ms: int = 0
    streams: list[Call] = field(default_factory=list)
    is_lost: bool = False


class ClientRegistry:
    """The registry holds all known clients by their id."""

    def __init__(self, clock: Clock, settings: BrokerSettings) -> None:
        self._clock = clock
        self.configure(settings)
        self._clients: dict[str, Client] = {}
        self._unattached: dict[str, None] = {}
        """Ids of clients without a telemetry stream, the one without for longest first."""
        self._topic_count = 0
        self._producers: dict[str, dict[str, None]] = {}
        """Ids of the producers that declared a topic, by topic."""
        self._consumers: dict[str, dict[str, None]] = {}
        """Ids of the consumers of a group, by group."""
        self._kinds: Counter[ClientKind] = Counter()
        self._lost_callbacks: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        """Iterate over the present clients, longest known first."""
        return iter(tuple(self._clients.values()))

    def configure(self, settings: BrokerSettings) -> None:
        """Apply changed settings: how long a client may be silent, and how much is kept.

        A client without any open telemetry stream is most likely gone: after `client_disconnected_ms` the messages it
        has are given to other consumers, while its settings stay. Clients send heartbeats every 10 s (Rust: 30 s).
        """
        self._silent_s = settings.delivery.client_silent_ms / 1000
        self._disconnected_s = settings.delivery.client_disconnected_ms / 1000
        self._limits = settings.limits

    def on_lost(self, callback: Callable[[str], None]) -> None:
        """Call `callback` with the id of each client that is gone, or must be taken for gone.

        A client taken for gone may come back: then it is alive again, and may be lost again.
        """
        self._lost_callbacks.append(callback)

    def register(self, client_id: str, settings: ClientSettings, stream: Call, owner: str | None = None) -> None:
        """Store a client's settings, replacing earlier ones. `stream` becomes the one to push to.

        The client belongs to its first `owner` until it is gone: the caller makes sure that no other user registers it.

        Raises OverLimit. When there are too many clients, the one without a stream for longest is dropped.
        """
        client = self._clients.get(client_id)
        self._check_room(client, settings, stream)
        if client is None:
            client = Client(client_id, settings, self._clock.monotonic_s(), owner)
            self._clients[client_id] = client
        else:
            self._withdraw(client)
        self._unattached.pop(client_id, None)
        self._topic_count += len(settings.topics)
        client.settings = settings
        client.peer, client.settings_ms = stream.peer, self._clock.wall_ms()
        self._kinds[settings.kind] += 1
        for index, name in self._index_places(settings):
            index.setdefault(name, {})[client_id] = None
        self._mark_seen(client)
        if stream in client.streams:
            client.streams.remove(stream)
        client.streams.append(stream)

    def _check_room(self, client: Client | None, settings: ClientSettings, stream: Call) -> None:
        limits = self._limits
        if client is not None and stream not in client.streams and len(client.streams) >= limits.streams_per_client:
            raise OverLimit("streams_per_client", f"the client has {len(client.streams)} open telemetry streams")
        declared = self._topic_count + len(settings.topics) - (0 if client is None else len(client.settings.topics))
        if settings.topics and declared > limits.client_topics:
            raise OverLimit("client_topics", f"all clients together have already declared {self._topic_count} topics")
        if client is None and len(self._clients) >= limits.clients:
            oldest = next(iter(self._unattached), None)
            if oldest is None:
                raise OverLimit("clients", f"{len(self._clients)} clients are already connected")
            self.terminate(oldest)

    def detach(self, client_id: str, stream: Call) -> None:
        """Note that the telemetry stream has ended; the client stays. Does nothing for a stream not registered."""
        client = self._clients.get(client_id)
        if client is not None and stream in client.streams:
            client.streams.remove(stream)
            client.last_seen_s = self._clock.monotonic_s()
            if not client.streams:
                self._unattached[client_id] = None

    def touch(self, client_id: str) -> None:
        """Note a sign of life: any call is one. Does nothing for an unknown client."""
        client = self._clients.get(client_id)
        if client is not None:
            self._mark_seen(client)

    def _mark_seen(self, client: Client) -> None:
        client.last_seen_s = self._clock.monotonic_s()
        client.is_lost = False

    def find(self, client_id: str) -> ClientSettings | None:
        """Return the client's settings; None before it has sent any."""
        client = self._clients.get(client_id)
        return None if client is None else client.settings

    def owner_of(self, client_id: str) -> str | None:
        """Return the user that registered the client; None if no user has."""
        client = self._clients.get(client_id)
        return None if client is None else client.owner

    def is_alive(self, client_id: str) -> bool:
        client = self._clients.get(client_id)
        return client is not None and not client.is_lost

    def push_stream(self, client_id: str) -> Call | None:
        """Return the newest telemetry stream that is still open, to push commands to; None without one."""
        client = self._clients.get(client_id)
        if client is None:
            return None
        return next((stream for stream in reversed(client.streams) if not stream.closed), None)

    def terminate(self, client_id: str) -> None:
        """Drop the client. Its streams are left open: the client closes them itself."""
        client = self._clients.pop(client_id, None)
        self._unattached.pop(client_id, None)
        if client is not None:
            self._withdraw(client)
        if client is not None and not client.is_lost:
            self._report_lost(client_id)

    def producers_of(self, topic: str) -> Sequence[str]:
        """Return the producers that declared the topic, longest known first."""
        return tuple(self._producers.get(topic, ()))

    def consumers_of(self, group: str) -> Sequence[Client]:
        """Return the consumers of the group, longest known first."""
        return tuple(self._clients[client_id] for client_id in self._consumers.get(group, ()))

    def consumers_in(self, group: str, topic: str) -> int:
        """Count the connected consumers of the group that subscribe to the topic."""
        return sum(topic in each.settings.topics and not each.is_lost for each in self.consumers_of(group))

    def subscriptions(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Iterate over the groups of the consumers that have a telemetry stream, with the topics they subscribe to."""
        for group, client_ids in self._consumers.items():
            for client in map(self._clients.__getitem__, client_ids):
                if client.streams:
                    yield group, client.settings.topics

    @property
    def kinds(self) -> Mapping[ClientKind, int]:
        """Return the number of clients of each kind."""
        return self._kinds

    def get(self, client_id: str) -> Client | None:
        return self._clients.get(client_id)

    def _index_places(self, settings: ClientSettings) -> Iterator[tuple[dict[str, dict[str, None]], str]]:
        """Yield the index entries of a client with these settings: a producer's topics, a consumer's group."""
        if settings.kind is ClientKind.PRODUCER:
            for topic in settings.topics:
                yield self._producers, topic
        elif settings.group is not None:
            yield self._consumers, settings.group

    def _withdraw(self, client: Client) -> None:
        """Take what the client declared out of the counts and indexes."""
        self._topic_count -= len(client.settings.topics)
        self._kinds[client.settings.kind] -= 1
        for index, name in self._index_places(client.settings):
            clients = index.get(name, {})
            clients.pop(client.client_id, None)
            if not clients:
                index.pop(name, None)

    def sweep(self) -> None:
        """Find clients that have gone silent; to be called every few seconds."""
        now_s = self._clock.monotonic_s()
        silent_since_s = now_s - self._silent_s
        disconnected_since_s = now_s - self._disconnected_s
        for client in tuple(self._clients.values()):
            if client.last_seen_s <= silent_since_s:
                self.terminate(client.client_id)
            elif client.last_seen_s <= disconnected_since_s and not client.streams and not client.is_lost:
                client.is_lost = True
                self._report_lost(client.client_id)

    def _report_lost(self, client_id: str) -> None:
        for callback in self._lost_callbacks:
            callback(client_id)
