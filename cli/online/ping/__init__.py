"""`quarry ping`: how long a broker takes to answer."""

from cli.online.ping.command import ping

__all__ = ["ping"]
