"""Measures what copies of a store cost their primary, how far they are behind, and how fast a copy is made.

The official Java client loads a primary with one copy, and one with two, each in turns with a broker without copies.
All run on the same machine and share its cores and its disk with the copies and the client. So at full load each has
less, and rates are lower bounds; compare the primary's CPU time per message at a fixed rate. Afterwards an empty copy
is made of what was sent, and a plain copy of the log's bytes for comparison.
"""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from bench.harness import Case, Options, Sample, cpu_s_of
from bench.java_load import GROUP, SEND_STEADILY_TOO, SIZES, TITLES, JavaLoad
from bench.peers import load as load_generator
from bench.peers.load import LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from quarry_mq.cli.demo import free_ports
from quarry_mq.protocol.clock import SystemClock
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.metadata import Group, Topic, TopicType
from quarry_mq.store.metadata.topics import READ_WRITE
from quarry_mq.store.opening.open_store import open_store
from quarry_mq.store.security.sealer import new_key
from quarry_mq.store.settings import Durability, StoreSettings

QUESTION: Final = "What do one and two copies of a store cost its primary, and how far are they behind at full load?"
TOPIC: Final = "bench-orders"
COPY_COUNTS: Final = (1, 2)
SEGMENT_SIZE: Final = 64 << 20
LAG_INTERVAL_S: Final = 1.0
"""Seconds between two samples of the lag: each takes some milliseconds of the primary's CPU time."""
PIECE_SIZE: Final = 1 << 20
SEED_TIMEOUT_S: Final = 600.0


class Shard:
    """A primary and its copies, with a port each for their connections."""

    def __init__(self, scratch: Path, copies: int) -> None:
        home = scratch / f"{copies}-copies"
        home.mkdir()
        self._home = home
        self._key = home / "replicas.key"
        self._key.write_bytes(new_key() + b"\n")
        self._key.chmod(0o600)
        names = ["primary", *(f"copy-{number}" for number in range(copies)), "seeded"]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.primary = self._broker("primary") if copies else Quarry(home / "primary", Durability.SYNC)
        self.copies = [self._broker(name) for name in names[1:-1]]

    def _broker(self, name: str) -> Quarry:
        peers = ", ".join(f'"{each}=127.0.0.1:{port}"' for each, port in self._ports.items())
        settings = {
            "QUARRY_REPLICATION_MODE": "async",
            "QUARRY_REPLICATION_REPLICA": name,
            "QUARRY_REPLICATION_PEERS": f"[{peers}]",
            "QUARRY_REPLICATION_KEY_FILE": str(self._key),
            "QUARRY_NETWORK_REPLICATION": f"127.0.0.1:{self._ports[name]}",
        }
        return Quarry(self._home / name, Durability.SYNC, settings)

    def start(self) -> None:
        """Make the topic and the group, and start the primary before its copies."""
        settings = StoreSettings(root=self.primary.store, segment_size=SEGMENT_SIZE)
        store = open_store(settings, disk=PosixDisk(), clock=SystemClock(), report=lambda _: None)
        store.topics.create(Topic(TOPIC, TopicType.NORMAL, 8, 8, READ_WRITE, {}))
        store.groups.create(Group(GROUP))
        store.close()
        for broker in (self.primary, *self.copies):
            broker.start()

    def close(self) -> None:
        for broker in (*self.copies, self.primary):
            broker.close()

    @contextmanager
    def watching_lag(self) -> Iterator[list[float]]:
        """Sample the greatest lag of a copy in seconds while the context is entered, as the primary knows it."""
        found: list[float] = []
        ended = Event()

        def watch() -> None:
            while not ended.wait(LAG_INTERVAL_S):
                found.append(max(figures(self.primary, "quarry_replica_lag_seconds", "copy-")))

        watcher = Thread(target=watch)
        watcher.start()
        try:
            yield found
        finally:
            ended.set()
            watcher.join()

    def seeded(self) -> Sample:
        """Make one more copy from nothing; return the bytes of the log, the time until it has all, and its CPU time."""
        copy = self._broker("seeded")
        started = Thread(target=copy.start)
        started.start()
        with closing(copy):
            self._wait("quarry_replica_connected", 1.0)
            begun_s = time.monotonic()
            self._wait("quarry_replica_lag_bytes", 0.0)
            took_s = time.monotonic() - begun_s
            started.join()
            return Sample(sum(self._log_files().values()), took_s, cpu_s_of(copy.pid))

    def _wait(self, name: str, value: float) -> None:
        """Wait until the new copy has this value of a metric of the primary."""
        give_up_s = time.monotonic() + SEED_TIMEOUT_S
        while figures(self.primary, name, "seeded") != [value]:
            if time.monotonic() > give_up_s:
                raise RuntimeError(f"no copy was made within {SEED_TIMEOUT_S} s")
            time.sleep(0.01)

    def copied_files(self) -> Sample:
        """Copy the bytes of the log and flush them, which is the limit; return as `seeded`."""
        files = self._log_files()
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        target = self._home / "plain-copy"
        target.mkdir()
        for path, size in files.items():
            with path.open("rb") as source, (target / path.name).open("wb") as copy:
                while piece := source.read(min(PIECE_SIZE, size - source.tell())):
                    copy.write(piece)
        PosixDisk().sync_file_system(target)
        return Sample(sum(files.values()), time.monotonic() - begun_s, time.process_time() - begun_cpu_s)

    def _log_files(self) -> dict[Path, int]:
        """Return the files of the primary's log, each with the bytes that are written."""
        found = sorted(path for path in (self.primary.store / "commitlog").iterdir() if path.is_file())
        return {path: len(path.read_bytes().rstrip(b"\0")) for path in found}


def figures(broker: Quarry, name: str, label: str = "") -> list[float]:
    """Return the values of a metric of a broker, of those samples that have the text in their labels."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.split()[-1]) for line in lines if line.startswith(name) and label in line]


def run(options: Options) -> list[Case]:
    class_path(load_generator.PROJECT)  # before anything is started
    sizes = SIZES[options.scale]
    with ExitStack() as running:
        alone, *shards = [running.enter_context(closing(Shard(options.scratch, count))) for count in (0, *COPY_COUNTS)]
        load = running.enter_context(closing(LoadGenerator(options.scratch / "load")))
        aimed = JavaLoad(load, SEND_STEADILY_TOO, topic=TOPIC, sample_s=sizes.sample_s, seed=options.seed)
        for shard in (alone, *shards):
            shard.start()
            aimed.wait_until_served(shard.primary)
            aimed.warm(shard.primary, sizes.warm_s)
        cases = [_case(aimed, mode, sizes.rounds, alone, shard) for shard in shards for mode in SEND_STEADILY_TOO]
        return [*cases, _seed_case(shards[0])]


def _case(aimed: JavaLoad, mode: str, rounds: int, alone: Shard, shard: Shard) -> Case:
    with shard.watching_lag() as lags:
        ours, theirs, details = aimed.compare(mode, rounds, shard.primary, alone.primary)
    return Case(
        name=f"{len(shard.copies)} copies: {TITLES[mode]}",
        unit="messages",
        peer="the same broker without copies",
        ours=ours,
        theirs=theirs,
        details={**details, "lag_p50_s": _at(lags, 0.5), "lag_p99_s": _at(lags, 0.99)},
    )


def _at(lags: Sequence[float], part: float) -> float:
    return round(sorted(lags)[int(part * (len(lags) - 1))], 4) if lags else 0.0


def _seed_case(shard: Shard) -> Case:
    return Case(
        name="a copy is made from nothing",
        unit="bytes",
        peer="the files of the log are copied",
        ours=[shard.seeded()],
        theirs=[shard.copied_files()],
    )
