"""An old primary hears that another copy was promoted from whoever knows it, and its stop waits for no answer."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas import connection as connection_module
from quarry_mq.server.replicas import primary as primary_module
from quarry_mq.server.replicas.connection import Peers
from quarry_mq.server.replicas.handshake import START_OVER, Hello, Keys, Welcome, nonce
from quarry_mq.server.replicas.port import ReplicationPort
from quarry_mq.server.replicas.primary import Primary as PrimarySide
from quarry_mq.server.replicas.primary import later_primary
from quarry_mq.server.replicas.role import Epoch, Role
from tests.e2e.broker import until
from tests.replicas.test_connections import KEY, LOOPBACK
from tests.replicas.test_copies import Primary

FIRST: Final = Epoch(1, 0, 7)
ROLE: Final = Role("x", 1, True, (FIRST,), "new", 65_536)


def answering(role: Role, *, lineage: str = "x", replica: str = "c") -> ReplicationPort:
    """Return the port of a copy that answers who it is, and serves nobody."""

    def answer(hello: Hello) -> Welcome:
        return Welcome(
            replica=replica,
            nonce=nonce(),
            is_primary=role.is_primary,
            lineage=lineage,
            term=role.term,
            epochs=role.epochs,
            origin="new",
            segment_size=65_536,
            log_begin=0,
            log_end=900,
            cut_to=START_OVER,
        )

    port = ReplicationPort(Address(LOOPBACK, 0), Keys([KEY]), None)
    port.answer_with(answer, lambda *_: None)
    return port


def peers_of(**addresses: Address) -> Peers:
    return Peers("quarry-0", "a", addresses, Keys([KEY]), None)


@pytest.mark.parametrize("is_primary", [True, False])
def test_whoever_knows_of_a_later_term_is_heard(is_primary: bool) -> None:
    """The new primary may be away or not serve yet, while a copy that follows it can be reached."""
    later = Role("x", 2, is_primary, (FIRST, Epoch(2, 500, 8)))
    with closing(answering(later)) as port:
        peers = peers_of(c=Address.parse(port.address))
        found = later_primary(peers, ROLE, peers.others)
    assert found is not None
    assert (found.replica, found.term) == ("c", 2)


@pytest.mark.parametrize(
    ("epochs", "lineage"),
    [((FIRST,), "x"), ((), "x"), ((FIRST, Epoch(2, 500, 8)), "another")],
    ids=["a copy of this one", "a copy that was emptied", "a copy of another store"],
)
def test_others_do_not_end_a_primary(epochs: tuple[Epoch, ...], lineage: str) -> None:
    with closing(answering(Role("x", 2, False, epochs), lineage=lineage)) as port:
        peers = peers_of(c=Address.parse(port.address))
        assert later_primary(peers, ROLE, peers.others) is None


def test_a_stop_does_not_wait_for_peers_that_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(primary_module, "ASK_INTERVAL_S", 0.01)
    monkeypatch.setattr(connection_module, "HANDSHAKE_S", 60.0)
    life = Primary(tmp_path / "a", Random(1))
    with ExitStack() as ending:
        silent = [ending.enter_context(socket.create_server((LOOPBACK, 0))) for _ in range(3)]
        addresses = {f"c{number}": Address(LOOPBACK, each.getsockname()[1]) for number, each in enumerate(silent)}
        deposed: list[str] = []
        side = PrimarySide(life.store, ROLE, peers_of(**addresses), clock=SystemClock(), deposed=deposed.append)
        port = ending.enter_context(closing(ReplicationPort(Address(LOOPBACK, 0), Keys([KEY]), None)))
        side.start(port)
        silent[0].settimeout(10)
        asked, _ = silent[0].accept()
        ending.enter_context(asked)
        begun_s = time.monotonic()
        side.stop()
        assert time.monotonic() - begun_s < 30
        asked.close()  # the answer does not come any more
        until(lambda: not side._watching.is_alive(), "the watch has ended")
        for each in silent[1:]:
            each.settimeout(0)
            with pytest.raises(BlockingIOError):
                each.accept()
    life.store.close()
    assert not deposed
