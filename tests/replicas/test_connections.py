"""A primary and a copy over sockets: whatever happens to a connection, the copy becomes equal in the end."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import rmtree
from threading import Event, Thread
from typing import Final

import pytest
import trustme

from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.server.addresses import Address
from quarry_mq.server.replicas import primary as primary_module
from quarry_mq.server.replicas import replica as replica_module
from quarry_mq.server.replicas.connection import Peers, ReplicaTls, connect
from quarry_mq.server.replicas.handshake import Keys
from quarry_mq.server.replicas.port import ReplicationPort
from quarry_mq.server.replicas.primary import Primary as PrimarySide
from quarry_mq.server.replicas.replica import Replica
from quarry_mq.server.replicas.role import Role, RoleFiles
from quarry_mq.server.replicas.status import ReplicaStatus
from quarry_mq.store.errors import StoreUnusable
from quarry_mq.store.fs import PosixCopyingDisk
from quarry_mq.store.message import PhysicalOffset
from tests.e2e.broker import until
from tests.replicas.forwarder import Forwarder
from tests.replicas.test_copies import Primary, require_equal, settings
from tests.replicas.test_wire import HELLO

KEY: Final = b"k" * 32
LOOPBACK: Final = "127.0.0.1"


class Shard:
    """A primary with a random life, on a port."""

    def __init__(
        self,
        root: Path,
        tls: ReplicaTls | None = None,
        seed: int = 1,
        *,
        role: Role | None = None,
        expires: bool = True,
    ) -> None:
        self.life = Primary(root, Random(seed), expires=expires)
        self.tls = tls
        self.deposed: list[str] = []
        role = role or Role().promoted(1, PhysicalOffset(0))
        self.port = ReplicationPort(Address(LOOPBACK, 0), Keys([KEY]), tls)
        self.side = PrimarySide(
            self.life.store,
            Role(role.lineage, role.term, True, role.epochs, "new", 64 * 1024),
            Peers("quarry-0", "a", {}, Keys([KEY]), tls),
            clock=SystemClock(),
            deposed=self.deposed.append,
        )
        self.side.start(self.port)

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.life.live()
        self.life.store.messages.dispatch(self.life.store.messages.flush())

    @property
    def address(self) -> Address:
        return Address.parse(self.port.address)

    def has_all(self, name: str = "b") -> bool:
        """Return whether the copy follows and has all that is here."""
        return any(
            each.name == name
            and each.is_connected
            and not each.is_seeding
            and (each.lag_bytes, each.lag_changes) == (0, 0)
            for each in self.side.statuses()
        )

    def close(self) -> None:
        self.side.stop()
        self.port.close()
        self.life.store.close()


class Follower:
    """A copy on a thread of its own."""

    def __init__(
        self,
        root: Path,
        address: Address,
        *,
        key: bytes = KEY,
        tls: ReplicaTls | None = None,
        name: str = "b",
        other: str = "a",
    ) -> None:
        self.root = root
        self.files = RoleFiles(PosixCopyingDisk(), root)
        self.said: list[ReplicaStatus] = []
        self._stop = Event()
        self.error: BaseException | None = None
        self.is_promoted = False
        self.replica = Replica(
            settings(root, has_copies=False),
            self.files.load() or Role(),
            self.files,
            Peers("quarry-0", name, {other: address}, Keys([key]), tls),
            clock=SystemClock(),
            report=lambda _: None,
            show=self.said.append,
            stop=self._stop,
        )
        self._thread = Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.is_promoted = self.replica.run()
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def promoted(self) -> None:
        self.files.ask("promote")
        self._thread.join(30)
        assert self.is_promoted, self.error


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path / "primary")
    with closing(made):
        yield made


def require_copy(shard: Shard, follower: Follower) -> None:
    """Wait until the copy has all, promote it, and compare."""
    until(shard.has_all, f"the copy has all: {shard.side.statuses()} {follower.said[-1:]} {follower.error}")
    follower.promoted()
    promoted = Primary(follower.root, Random(0))
    require_equal(shard.life.store, promoted.store)
    promoted.store.close()


def test_a_copy_follows_while_its_primary_lives(shard: Shard, tmp_path: Path) -> None:
    shard.live(20)
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        for _ in range(20):
            shard.live(3)
            time.sleep(0.01)
        require_copy(shard, follower)
    assert follower.error is None
    role = follower.files.load()
    assert role is not None
    assert [epoch.term for epoch in role.epochs] == [1, 2]
    assert role.lineage == shard.side.role.lineage


def test_a_copy_that_stopped_goes_on_where_it_was(shard: Shard, tmp_path: Path) -> None:
    shard.live(20)
    with closing(Follower(tmp_path / "b", shard.address)):
        until(shard.has_all, "the copy has all")
    until(lambda: not shard.has_all(), "the copy is away")
    shard.live(20)
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        require_copy(shard, follower)
    assert not any(following.is_seeding for following in follower.said if following.is_connected), "no row came again"


@pytest.mark.parametrize("seed", range(3))
def test_a_byte_that_is_changed_on_the_way_ends_the_connection_and_harms_nothing(
    shard: Shard, tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    shard.live(30)
    with closing(Forwarder(shard.address)) as wire:
        spoilt: list[int] = []

        def spoil(data: bytes) -> bytes:
            if len(spoilt) == 3 or chance.random() < 0.7:
                return data
            spoilt.append(at := chance.randrange(len(data)))
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]

        wire.spoil = spoil
        with closing(Follower(tmp_path / "b", wire.address)) as follower:
            until(lambda: len(spoilt) == 3, "bytes were changed")
            shard.live(10)
            require_copy(shard, follower)
        assert wire.connections > 1


def test_a_connection_that_hangs_is_given_up_by_both_sides(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "SILENCE_S", 0.5)
    monkeypatch.setattr(primary_module, "SILENCE_S", 0.5)
    shard.live(10)
    with closing(Forwarder(shard.address)) as wire, closing(Follower(tmp_path / "b", wire.address)) as follower:
        until(shard.has_all, "the copy has all")
        wire.spoil = lambda _: None
        shard.live(30)  # the primary goes on meanwhile
        until(lambda: wire.connections > 2, "the copy tries again")
        wire.spoil = lambda data: data
        require_copy(shard, follower)


def test_a_copy_that_connects_again_before_its_first_connection_ends_is_connected(
    shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition ends no connection: the primary hears of its end long after the copy has connected again."""

    def served() -> int:
        return sum(thread.name == "replication" for thread in threading.enumerate())

    monkeypatch.setattr(primary_module, "SILENCE_S", 1.0)
    shard.live(30)
    hanging = replace(HELLO, shard="quarry-0", replica="b", follows=True, lineage="", epochs=(), log_end=0, position=0)
    with closing(connect(shard.address, None)) as connection:
        connection.greet(hanging, Keys([KEY]))
        until(lambda: any(each.is_connected for each in shard.side.statuses()), "the first connection is served")
        with closing(Follower(tmp_path / "copy", shard.address)) as follower:
            until(shard.has_all, "the copy has all")
            until(lambda: served() == 1, "the first connection has ended")
            shard.live(10)
            require_copy(shard, follower)


@pytest.mark.parametrize("dies", [False, True])
def test_an_old_primary_gives_up_what_only_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """The copy may die when it has written down the epochs: its log must have been cut before."""
    with closing(Shard(tmp_path / "a")) as old:
        old.live(30)
        with closing(Follower(tmp_path / "b", old.address)) as follower:
            until(old.has_all, "the copy has all")
            follower.promoted()
        old.live(30)  # only the old primary has this
        role = old.side.role
    RoleFiles(PosixCopyingDisk(), tmp_path / "a").save(replace(role, is_primary=False))
    save, calls = RoleFiles.save, []

    def save_and_die(files: RoleFiles, role: Role) -> None:
        save(files, role)
        calls.append(role)
        if dies and len(calls) == 1:
            raise OSError("the power goes")

    with closing(Shard(tmp_path / "b", role=follower.files.load())) as new:
        new.live(10)
        monkeypatch.setattr(RoleFiles, "save", save_and_die)
        with closing(Follower(tmp_path / "a", new.address)) as follower:
            require_copy(new, follower)
    assert list((tmp_path / "a" / "commitlog" / "broken").iterdir()), "it is kept"


def test_a_copy_that_is_asked_to_begin_again_keeps_what_it_has_until_there_is_a_primary(
    shard: Shard, tmp_path: Path
) -> None:
    shard.live(20)
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        until(shard.has_all, "the copy has all")
    follower.files.ask("seed")
    [nobody] = free_ports(1)
    with closing(Follower(tmp_path / "b", Address(LOOPBACK, nobody))) as follower:
        until(lambda: bool(follower.said), "it has looked for a primary")
    segments = list((tmp_path / "b" / "commitlog").iterdir())
    assert segments
    until(lambda: not shard.has_all(), "the copy is away")
    shard.live(5)
    segments[0].write_bytes(b"no log any more")
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        require_copy(shard, follower)
    assert not follower.files.is_asked("seed")


def test_a_copy_that_is_being_emptied_when_it_dies_is_emptied_by_the_next_start(shard: Shard, tmp_path: Path) -> None:
    shard.live(20)
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        until(shard.has_all, "the copy has all")
    follower.files.ask("emptying")
    rmtree(tmp_path / "b" / "quarry")
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        require_copy(shard, follower)
    assert not follower.files.is_asked("emptying")


def test_strangers_harm_nobody(shard: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(1)
    shard.live(10)
    threads = threading.active_count()
    for size in (0, 1, 23, 24, 100, 70_000):
        with socket.create_connection((LOOPBACK, shard.address.port)) as stranger, suppress(OSError):
            stranger.sendall(chance.randbytes(size))
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(10)
            assert stranger.recv(100) == b""
    until(lambda: threading.active_count() <= threads, "their threads have ended")
    with closing(Follower(tmp_path / "c", shard.address, key=b"x" * 32)) as keyless:
        until(lambda: any("does not have the key" in each.problem for each in keyless.said), "the key is named")
    assert not (tmp_path / "c" / "commitlog").exists()
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        require_copy(shard, follower)


def test_connections_are_limited(shard: Shard) -> None:
    taken = [socket.create_connection((LOOPBACK, shard.address.port)) for _ in range(40)]
    until(lambda: sum(_is_closed(each) for each in taken) >= 8, "the rest is closed")
    for each in taken:
        each.close()


def _is_closed(connected: socket.socket) -> bool:
    connected.setblocking(False)
    try:
        return connected.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_copy_of_another_store_is_refused(shard: Shard, tmp_path: Path) -> None:
    files = RoleFiles(PosixCopyingDisk(), tmp_path / "b")
    files.save(Role("another lineage"))
    with closing(Follower(tmp_path / "b", shard.address)) as follower:
        until(lambda: follower.error is not None, "it ends")
    assert isinstance(follower.error, StoreUnusable)
    assert "not a copy of this one" in str(follower.error)


def test_tls_between_copies(tmp_path: Path) -> None:
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert(LOOPBACK)
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "cert.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    tls = ReplicaTls(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    with closing(Shard(tmp_path / "primary", tls)) as shard:
        shard.live(20)
        with closing(Follower(tmp_path / "plain", shard.address)) as plain:
            until(lambda: bool(plain.said), "it cannot connect without TLS")
        with closing(Follower(tmp_path / "c", shard.address, tls=tls._replace(authority=tmp_path / "other.pem"))) as c:
            until(lambda: any("certificate verify failed" in each.problem for each in c.said), "it is verified")
        with closing(Follower(tmp_path / "b", shard.address, tls=tls)) as follower:
            shard.live(10)
            require_copy(shard, follower)
