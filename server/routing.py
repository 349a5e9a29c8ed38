"""Build routes and assignments: the queues with their permissions, and the addresses of the broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from quarry_mq.server.addresses import Address
from quarry_mq.server.settings.sections import NetworkSection
from quarry_mq.server.wire.messages import host_from_text
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.message import Host
from quarry_mq.store.metadata import READ_WRITE, Group, Permission, Topic


@dataclass(kw_only=True, slots=True)
class BrokerIdentity:
    """Clients know this broker by its name and these addresses.

    They tell brokers apart by `name`. They reach the broker at `advertise` when that is set, else at the address they
    dialled themselves, which holds through NAT, port mappings and ingresses (rmq#8864); `listen` is for
    clients that do not say what they dialled. It is set again when the broker listens: port 0 becomes the real one.

    A client uses TLS with every address it learns, or with none, so clients that came with TLS get addresses of
    their own. Without `secure_listen` they get `listen`.
    """

    name: str
    listen: Address
    advertise: Address | None = None
    secure_listen: Address | None = None
    secure_advertise: Address | None = None
    reached_at: str = ""
    """`host:port` at which clients reach the broker, for what is stored and shown."""

    @classmethod
    def of(cls, name: str, network: NetworkSection) -> Self:
        """Return the identity of a broker with these settings, which does not listen yet."""
        advertise = Address.parse(network.advertise) if network.advertise else None
        if network.tls_advertise is not None:
            secure_advertise: Address | None = Address.parse(network.tls_advertise)
        else:
            # without TLS on `listen` that is the wrong address for clients with TLS
            secure_advertise = None if network.tls == "off" else advertise
        return cls(
            name=name,
            listen=Address.parse(network.listen),
            advertise=advertise,
            secure_advertise=secure_advertise,
            reached_at=network.advertise or network.listen,
        )

    def listens_at(self, address: str, *, secure: str | None = None) -> None:
        """Note where the broker listens: `secure` is an address with TLS alone, beside `address` without."""
        self.listen = Address.parse(address)
        self.secure_listen = None if secure is None else Address.parse(secure)
        if self.advertise is None:
            self.reached_at = address

    def store_host(self) -> Host:
        """Return the broker's address as records hold it."""
        return host_from_text(self.reached_at)

    def advertised_to(self, *, is_secure: bool) -> Address | None:
        """Return the address that clients with or without TLS are sent to; None for the one that they dialled."""
        return self.secure_advertise if is_secure else self.advertise

    def listens_for(self, *, is_secure: bool) -> Address:
        """Return the address where clients with or without TLS can connect."""
        return self.secure_listen or self.listen if is_secure else self.listen


class RouteQueue(NamedTuple):
    """A route lists one of these per queue. `number` is its place there, which clients show and the broker ignores."""

    number: int
    permission: Permission


def route_queues(topic: Topic) -> list[RouteQueue]:
    """Return the queues of a topic as RocketMQ lists them, never empty.

    With unequal counts the queues with one permission come first, then those with both. Without any permission there
    is at least one queue, so that clients see why they may not use the topic.
    """
    read, write = topic.read_queues, topic.write_queues
    may_read, may_write = Permission.READ in topic.permission, Permission.WRITE in topic.permission
    if may_read and may_write:
        both = min(read, write)
        permissions = [Permission.READ] * (read - both) + [Permission.WRITE] * (write - both) + [READ_WRITE] * both
    elif may_read:
        permissions = [Permission.READ] * read
    elif may_write:
        permissions = [Permission.WRITE] * write
    else:
        permissions = [Permission(0)] * max(1, read, write)
    return [RouteQueue(number, permission) for number, permission in enumerate(permissions)]


def require_readable(topic: Topic) -> None:
    """Raise Forbidden for a topic that may not be read."""
    if Permission.READ not in topic.permission or topic.read_queues < 1:
        raise Forbidden(f"no readable queue: topic {topic.name} may not be read")


def assigned_queues(topic: Topic, group: Group) -> list[int | None]:
    """Return the queues that each consumer of the group receives from; None is any queue of the broker.

    Every consumer gets the same list: which of them gets a message is decided at each receive. Raises Forbidden for a
    topic that may not be read.
    """
    require_readable(topic)
    return list(range(topic.read_queues)) if group.fifo else [None]
