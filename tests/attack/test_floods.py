"""One hostile address at full rate: an honest client keeps its pace, and the broker is what it was.

How it is measured: the broker, the flood and the honest client are processes of their own; the flood is nice'd, has
another source address (127.0.0.2) and as many connections as the test says. The honest client sends 200 messages per
second on one connection, open loop; an answer counts that comes within a second of when its request was due. Its rate
before the flood is compared with that under it. The machine's other work is part of both.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from tests.attack.conftest import Footprint
from tests.attack.flooder import KINDS, WRONG_SECRETS
from tests.attack.good_client import GoodClient
from tests.attack.wire import Headers
from tests.e2e.broker import PROJECT, Broker
from tests.hostile.caller import assert_unharmed

HOSTILE_ADDRESS: Final = "127.0.0.2"
KEPT: Final = 0.8
GROWTH_KIB: Final = 192 * 1024
"""Of caches, and of what the allocator keeps of the buffers of fifty connections; the next flood adds nothing."""


@contextmanager
def flooded(broker: Broker, kind: str, connections: int, seconds: float) -> Iterator[None]:
    """For as long as this is entered, and at most for so long, the broker is flooded."""
    arguments = [kind, broker.endpoint, HOSTILE_ADDRESS, str(connections), str(seconds)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.attack.flooder", *arguments], cwd=PROJECT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield
            assert process.poll() is None, "the flood has ended before"
        finally:
            process.terminate()


def attack(broker: Broker, kind: str, connections: int, seconds: float, who: Headers = ()) -> None:
    before = Footprint.of(broker)
    client = GoodClient(broker.endpoint, "acme-steady", who)
    try:
        client.send(0.2)  # the topic is made
        alone = client.send(seconds)
        with flooded(broker, kind, connections, 10 * seconds + 10):
            client.send(0.5)
            under = client.send(seconds)
    finally:
        client.close()
    after = Footprint.of(broker)
    measured = f"{kind}, {connections} connections: alone {alone}; under the flood {under}; {before} became {after}"
    print(measured)
    assert under.per_second >= KEPT * alone.per_second, measured
    after.assert_kept(before, growth_kib=GROWTH_KIB)
    if not who:
        assert_unharmed(broker)


@pytest.mark.parametrize("kind", ["routes", pytest.param("malformed", marks=pytest.mark.slow)])
def test_an_honest_client_keeps_its_pace_beside_one_connection_that_floods(broker: Broker, kind: str) -> None:
    attack(broker, kind, connections=1, seconds=0.8)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("connections", [1, 50])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != WRONG_SECRETS])
def test_an_honest_client_keeps_its_pace_for_long(broker: Broker, kind: str, connections: int) -> None:
    attack(broker, kind, connections, seconds=5)
