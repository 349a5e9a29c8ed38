"""What does an official client get from Quarry, and what from RocketMQ, on the same machine in the same minutes?

The official Java client loads both servers in turns, once with sends answered when they are on disk (Quarry `sync`,
RocketMQ SYNC_FLUSH) and once with sends answered at once (`async`, ASYNC_FLUSH). What the sending modes stored is what
the receiving mode reads. Client and server share the cores, so beside the rates look at the CPU time that the server
takes per message: it says what the server could do if the client ran elsewhere.

RocketMQ needs about half a minute of load to reach its speed, which is what most of the time goes to.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Protocol

from bench.harness import CannotRun, Case, Options, Sample, Scale, alternate
from bench.peers import load as load_generator
from bench.peers import rocketmq as rocketmq_server
from bench.peers.load import LoadFailed, LoadGenerator
from bench.peers.maven import class_path
from bench.peers.quarry import Quarry
from bench.peers.rocketmq import RocketMQ
from store.settings import Durability

QUESTION: Final = (
    "What does the official Java client get from Quarry, as a multiple of what it gets from RocketMQ 5.5.0?"
)
TOPIC: Final = "bench-orders"
GROUP: Final = "bench-billing"
QUEUES: Final = 8
"""Quarry's default for a topic that a client asks for."""
SERVE_TIMEOUT_S: Final = 60.0
PROBE_INTERVAL_S: Final = 0.5

MODES: Final[Mapping[str, Mapping[str, object]]] = {
    "send": {"threads": 32, "body": 1024},
    "pipeline": {"in_flight": 256, "body": 1024},
    "receive": {"threads": 8, "batch": 32, "group": GROUP},
}
"""In this order: receiving takes what sending left."""

TITLES: Final = {
    "send": "send, 32 threads that wait",
    "pipeline": "send, 256 in flight",
    "receive": "receive 32, acknowledge each",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each sample, and of load before the first one."""

    sample_s: float
    rounds: int
    warm_rocketmq_s: float
    warm_quarry_s: float


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=4, rounds=3, warm_rocketmq_s=30, warm_quarry_s=4),
    Scale.QUICK: Sizes(sample_s=2, rounds=1, warm_rocketmq_s=10, warm_quarry_s=2),
    Scale.TINY: Sizes(sample_s=0.5, rounds=1, warm_rocketmq_s=1, warm_quarry_s=0.5),
}


class Server(Protocol):
    """A running server under load."""

    endpoint: str

    @property
    def pid(self) -> int: ...


def run(options: Options) -> list[Case]:
    if options.scale is not Scale.FULL and not options.named:
        raise CannotRun("RocketMQ takes minutes; `python -m bench clients` asks for it by name")
    for project in (load_generator.PROJECT, rocketmq_server.PROJECT):
        class_path(project)  # before anything is started
    sizes = SIZES[options.scale]
    return [case for durability in Durability for case in _cases(options, sizes, durability)]


def _cases(options: Options, sizes: Sizes, durability: Durability) -> list[Case]:
    scratch = options.scratch / durability.value
    scratch.mkdir()
    with (
        closing(Quarry(scratch / "quarry", durability)) as quarry,
        closing(RocketMQ(scratch / "rocketmq", durability, topic=TOPIC, queues=QUEUES, group=GROUP)) as rocketmq,
        closing(LoadGenerator(scratch / "load")) as load,
    ):
        quarry.start()
        rocketmq.start()
        rig = _Rig(load, sizes, options.seed)
        for server in (quarry, rocketmq):
            rig.wait_until_served(server)
        rig.warm(rocketmq, sizes.warm_rocketmq_s)
        rig.warm(quarry, sizes.warm_quarry_s)
        return [rig.case(mode, durability, quarry, rocketmq) for mode in MODES]


class _Rig:
    """The load generator, aimed."""

    def __init__(self, load: LoadGenerator, sizes: Sizes, seed: int) -> None:
        self._load = load
        self._sizes = sizes
        self._seed = seed

    def wait_until_served(self, server: Server) -> None:
        deadline = time.monotonic() + SERVE_TIMEOUT_S
        while True:
            try:
                self._load.run("probe", endpoint=server.endpoint, topic=TOPIC)
            except LoadFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PROBE_INTERVAL_S)
            else:
                return

    def warm(self, server: Server, seconds: float) -> None:
        """All modes in turns, so that each has met compiled code of the others' paths too."""
        print(f"  {seconds} s of load on {server.endpoint}", file=sys.stderr, flush=True)
        for mode in MODES:
            self._run(mode, server, seconds / len(MODES))

    def case(self, mode: str, durability: Durability, quarry: Server, rocketmq: Server) -> Case:
        ours: list[dict[str, Any]] = []
        theirs: list[dict[str, Any]] = []
        samples = alternate(
            self._sizes.rounds, lambda: self._sample(mode, quarry, ours), lambda: self._sample(mode, rocketmq, theirs)
        )
        return Case(
            name=f"{durability.value}: {TITLES[mode]}",
            unit="messages",
            peer="RocketMQ 5.5.0",
            ours=samples[0],
            theirs=samples[1],
            details={
                "durability": durability.value,
                "mode": mode,
                "server_cpu_ratio": round(median(a.cpu_us / b.cpu_us for a, b in zip(*samples, strict=True)), 4),
                **_latencies("", ours),
                **_latencies("peer_", theirs),
            },
        )

    def _sample(self, mode: str, server: Server, answers: list[dict[str, Any]]) -> Sample:
        before_s = _cpu_s(server.pid)
        answer = self._run(mode, server, self._sizes.sample_s)
        cpu_s = _cpu_s(server.pid) - before_s
        messages = answer["messages"]
        if not messages:
            raise LoadFailed(f"no message came through {server.endpoint} in mode {mode}: {answer}")
        answers.append(answer)
        # the CPU time is that of all messages, some of which ended after the window
        return Sample(messages, answer["seconds"], cpu_s * messages / answer["total"])

    def _run(self, mode: str, server: Server, seconds: float) -> dict[str, Any]:
        return self._load.run(
            mode, endpoint=server.endpoint, topic=TOPIC, seconds=seconds, seed=self._seed, **MODES[mode]
        )


def _latencies(prefix: str, answers: list[dict[str, Any]]) -> dict[str, object]:
    """`errors` other than 0 and, in mode receive, `empty_receives` other than 0 make a rate doubtful."""
    medians = {name: median(answer[name] for answer in answers) for name in ("p50_ms", "p99_ms")}
    sums = {name: sum(answer[name] for answer in answers) for name in ("errors", "empty_receives")}
    return {prefix + name: value for name, value in {**medians, **sums}.items()}


def _cpu_s(pid: int) -> float:
    """CPU time the process has taken so far, all threads, in the kernel's clock ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
