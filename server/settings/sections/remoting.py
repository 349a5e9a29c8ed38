"""Settings of RocketMQ's remoting protocol."""

from __future__ import annotations

from pydantic import Field

from quarry_mq.server.settings.sections.base import OFF, AdvertisedAddress, ListenAddressOrOff, Section


class RemotingSection(Section):
    listen: ListenAddressOrOff = Field(
        default="127.0.0.1:10911",
        description="Where clients and tools that speak RocketMQ's remoting protocol reach the broker, or `off`; the "
        "default is RocketMQ's port. If this setting is not set and the port is taken, the broker starts without it. "
        "Unless this and its siblings are `off`, `network.listen` serves these clients, too: the first byte of a "
        "connection decides. [What is served](remoting.md)",
    )
    names_listen: ListenAddressOrOff = Field(
        default="127.0.0.1:9876",
        description="Where these clients reach their name server, or `off`; as for `listen`. All addresses answer "
        "both kinds of requests.",
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
        "dialled, with the port of `listen` if the client came by `names_listen` or `fast_listen`; a client that came "
        "by `network.listen` gets `network.advertise`, if that is set. In a cluster, routes have the addresses at "
        "which the members serve gRPC (`network.advertise`).",
    )

    @property
    def is_on(self) -> bool:
        """Return whether the protocol is served at all."""
        return any(each != OFF for each in (self.listen, self.names_listen, self.fast_listen))
