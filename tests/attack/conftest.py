"""A broker that stays the same for all attacks of a module, and what it takes before and after each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.broker import Broker, environment_of, until
from tests.hostile import conftest as hostile
from tests.hostile.caller import assert_unharmed

SETTINGS: Mapping[str, object] = {
    **hostile.SETTINGS,
    "limits.topics_per_user": 200,
    "limits.groups_per_user": 200,
}


GONE_S = 240.0
"""What a flood has left in the kernel's buffers is handled before the broker sees that nobody is there any more."""


class Footprint(NamedTuple):
    """What the broker takes."""

    resident_kib: int
    descriptors: int

    @classmethod
    def of(cls, broker: Broker) -> Footprint:
        """Once everybody else has gone, and as memory is when its peak is over."""
        until(lambda: broker.stat("quarry_front_calls_open") == 0, "no call is open", timeout_s=GONE_S)
        until(lambda: broker.stat("quarry_front_connections_open") == 0, "no connection is open", timeout_s=GONE_S)
        return cls(broker.resident_kib(), broker.open_descriptors())

    def assert_kept(self, before: Footprint, *, growth_kib: int) -> None:
        """No more than so much was left behind."""
        assert self.resident_kib - before.resident_kib < growth_kib, f"{before} became {self}"
        assert self.descriptors <= before.descriptors + 20, f"{before} became {self}"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """At the module's end it must serve as ever and stop in good order."""
    broker = started(tmp_path_factory.mktemp("attack"))
    try:
        assert_unharmed(broker)
        yield broker
        assert_unharmed(broker)
        broker.stop()
    finally:
        broker.close()


def started(root: Path, settings: Mapping[str, object] = SETTINGS) -> Broker:
    return Broker(root / "store", logs=root / "logs", environment=environment_of(settings)).start()
