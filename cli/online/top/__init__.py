"""`quarry top`: a broker seen live in a terminal, over its admin port alone."""

from quarry_mq.cli.online.top.command import top

__all__ = ["top"]
