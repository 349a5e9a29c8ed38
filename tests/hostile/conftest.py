"""A broker that stays the same for all of a module's attacks: what one of them leaves behind, the next one meets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.e2e.broker import Broker, environment_of
from tests.hostile.absurd import GOOD_NAME
from tests.hostile.caller import Caller, assert_unharmed

SETTINGS: Mapping[str, object] = {
    "store.segment_size": "16MiB",
    "store.durability": "async",  # the disk is not what these tests are about
    "topics.default_queues": 2,
    "delivery.polling_min_ms": 0,
    "delivery.polling_max_ms": 100,  # receives that find nothing are answered soon
    "network.stop_grace_ms": 500,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker. At the module's end it must serve as ever and stop in good order."""
    root = tmp_path_factory.mktemp("hostile")
    broker = Broker(root / "store", logs=root / "logs", environment=environment_of(SETTINGS))
    try:
        broker.start()
        broker.administer("topic", "create", GOOD_NAME)  # for good requests, whichever test comes first
        yield broker
        assert_unharmed(broker)
        broker.stop()
    finally:
        broker.close()


@pytest.fixture(scope="module")
def caller(broker: Broker) -> Iterator[Caller]:
    with Caller(broker.endpoint) as caller:
        yield caller
