"""The commands of both consumers of lite topics of `rocketmq-python-client`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from rocketmq.v5.exception import LiteSubscriptionQuotaExceededException

from tests.e2e.python.line_protocol import Line

SETTINGS_COME_S: Final = 10.0


class Unsupported(Exception):
    """The library has no such thing."""


def subscription_commands(consumer: Any) -> dict[str, Callable[[Line], Line]]:
    def subscribe(command: Line) -> Line:
        if command["start"] is not None:
            raise Unsupported("where to start in a lite topic")
        _subscribe(consumer, command["lite_topic"])
        if command["synchronizes"]:
            # 5.1.2 names the letters of a lite topic until it says all that it wants, which is each 30 s or now
            consumer.subscribe_lite_all()
        return {}

    def unsubscribe(command: Line) -> Line:
        consumer.unsubscribe_lite(command["lite_topic"])
        return {}

    def subscribed(_: Line) -> Line:
        raise Unsupported("what it is subscribed to")

    return {"subscribe": subscribe, "unsubscribe": unsubscribe, "subscribed": subscribed}


def _subscribe(consumer: Any, lite_topic: str) -> None:
    """The simple consumer starts without settings: until they come, its quota is 0."""
    deadline = time.monotonic() + SETTINGS_COME_S
    while True:
        try:
            consumer.subscribe_lite(lite_topic)
        except LiteSubscriptionQuotaExceededException as error:
            if "quota: 0 " not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
