"""`quarry top` shows a live broker in a terminal, by calls of its admin port only."""

from quarry_mq.cli.online.top.command import top

__all__ = ["top"]
