"""Settings of RocketMQ's remoting protocol."""

from __future__ import annotations

from pydantic import Field

from quarry_mq.server.settings.sections.base import OFF, AdvertisedAddress, ListenAddressOrOff, Section


class RemotingSection(Section):
    listen: ListenAddressOrOff = Field(
        default=OFF,
        description="Where clients and tools that speak RocketMQ's remoting protocol reach the broker, or `off`. "
        "RocketMQ uses port 10911. While it or `names_listen` is set, `network.listen` serves these clients, too: the "
        "first byte of a connection decides. [What is served](remoting.md)",
    )
    names_listen: ListenAddressOrOff = Field(
        default=OFF,
        description="Where these clients reach their name server, or `off`. RocketMQ uses port 9876. All addresses "
        "answer both kinds of requests.",
    )
    fast_listen: ListenAddressOrOff = Field(
        default=OFF,
        description="Where clients with the VIP channel reach the broker, or `off`. They take the port of the broker "
        "less 2, which is 10909 for RocketMQ: its dashboard does so unless it is told otherwise, and so do clients "
        "before 4.5.1.",
    )
    advertise: AdvertisedAddress | None = Field(
        default=None,
        description="The address of the broker in routes for these clients. Default: the address that the client "
        "dialled, with the port of `listen` if the client came by `names_listen` or `fast_listen`. In a cluster, "
        "routes have the addresses at which the members serve gRPC (`network.advertise`).",
    )

    @property
    def is_on(self) -> bool:
        """Return whether the protocol is served at all."""
        return any(each != OFF for each in (self.listen, self.names_listen, self.fast_listen))
