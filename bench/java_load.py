"""Loads two servers in turns by the official Java client."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from bench.harness import Sample, Scale, Server, alternate, cpu_s_of
from bench.peers.load import LoadFailed, LoadGenerator

Modes = Mapping[str, Mapping[str, object]]
"""Maps modes of the load generator to their parameters."""

GROUP: Final = "bench-billing"
SEND_AND_RECEIVE: Final[Modes] = {
    "send": {"threads": 32, "body": 1024},
    "pipeline": {"in_flight": 256, "body": 1024},
    "receive": {"threads": 8, "batch": 32, "group": GROUP},
}
"""Modes in this order: receiving takes the messages that sending left."""

SEND_STEADILY_TOO: Final[Modes] = {**SEND_AND_RECEIVE, "steady": {"rate": 1_000, "body": 1024}}

PERCENTILES: Final = ("p50", "p99", "p999")

TITLES: Final = {
    "send": "send, 32 threads that wait",
    "pipeline": "send, 256 in flight",
    "steady": "send, at a fixed rate",
    "receive": "receive 32, acknowledge each",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each sample, and of load on each server before the first one."""

    sample_s: float
    rounds: int
    warm_s: float


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=4, rounds=5, warm_s=12),
    Scale.QUICK: Sizes(sample_s=2, rounds=1, warm_s=3),
    Scale.TINY: Sizes(sample_s=0.5, rounds=1, warm_s=0.5),
}


SERVE_TIMEOUT_S: Final = 60.0
PROBE_INTERVAL_S: Final = 0.5


class JavaLoad:
    """The load generator with its target topic. Raises LoadFailed when a server does not serve it.

    `access` has further parameters for clients of an endpoint: `tls`, `user` and `secret`.
    """

    def __init__(
        self,
        load: LoadGenerator,
        modes: Modes,
        *,
        topic: str,
        sample_s: float,
        seed: int,
        access: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        self._access = access
        self._load = load
        self._modes = modes
        self._topic = topic
        self._sample_s = sample_s
        self._seed = seed

    def wait_until_served(self, server: Server) -> None:
        deadline = time.monotonic() + SERVE_TIMEOUT_S
        while True:
            try:
                self._run("probe", server, {})
            except LoadFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PROBE_INTERVAL_S)
            else:
                return

    def warm(self, server: Server, seconds: float) -> None:
        """Run all modes in turns, so that each also meets code that was compiled for the others."""
        print(f"  {seconds} s of load on {server.endpoint}", file=sys.stderr, flush=True)
        for mode in self._modes:
            self._run_for(seconds / len(self._modes), mode, server)

    def compare(
        self, mode: str, rounds: int, ours: Server, peer: Server, **words: object
    ) -> tuple[list[Sample], list[Sample], dict[str, object]]:
        """Return samples of both, and further results: CPU time of the servers, latencies, errors.

        `words` replace the mode's parameters.
        """
        answers: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
        samples = alternate(
            rounds,
            lambda: self._sample(mode, ours, words, answers[0]),
            lambda: self._sample(mode, peer, words, answers[1]),
        )
        details = {
            "mode": mode,
            "server_cpu_ratio": round(median(a.cpu_us / b.cpu_us for a, b in zip(*samples, strict=True)), 4),
            **_latencies("", answers[0]),
            **_latencies("peer_", answers[1]),
            **{
                f"{name}_ratio": round(
                    median(a[f"{name}_ms"] / b[f"{name}_ms"] for a, b in zip(*answers, strict=True)), 4
                )
                for name in PERCENTILES
            },
        }
        return *samples, details

    def _sample(self, mode: str, server: Server, words: Mapping[str, object], answers: list[dict[str, Any]]) -> Sample:
        before_s = cpu_s_of(server.pid)
        answer = self._run_for(self._sample_s, mode, server, words)
        cpu_s = cpu_s_of(server.pid) - before_s
        messages = answer["messages"]
        if not messages:
            raise LoadFailed(f"no message came through {server.endpoint} in mode {mode}: {answer}")
        answers.append(answer)
        # the CPU time covers all messages, some of which ended after the window
        return Sample(messages, answer["seconds"], cpu_s * messages / answer["total"])

    def _run_for(
        self, seconds: float, mode: str, server: Server, words: Mapping[str, object] = MappingProxyType({})
    ) -> dict[str, Any]:
        return self._run(mode, server, {"seconds": seconds, "seed": self._seed, **self._modes[mode], **words})

    def _run(self, mode: str, server: Server, words: Mapping[str, object]) -> dict[str, Any]:
        access = self._access.get(server.endpoint, {})
        return self._load.run(mode, endpoint=server.endpoint, topic=self._topic, **words, **access)


def _latencies(prefix: str, answers: list[dict[str, Any]]) -> dict[str, object]:
    """Return medians of latencies.

    `errors` other than 0 and, in mode receive, `empty_receives` other than 0 make a rate doubtful.
    """
    medians = {f"{name}_ms": median(answer[f"{name}_ms"] for answer in answers) for name in PERCENTILES}
    sums = {name: sum(answer[name] for answer in answers) for name in ("errors", "empty_receives")}
    return {prefix + name: value for name, value in {**medians, **sums}.items()}
