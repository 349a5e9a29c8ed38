"""Measures whether sends wait for a broker's other work: flushes, compactions, new segments, garbage collections.

Two brokers with `async` are loaded in turns, with the same clients that wait for each answer: one with default
settings, and one whose settings make it do the work ten to a hundred times as often. If sends waited for it, one in a
hundred or in a thousand of them would take longer there. Expiry has its own benchmarks (`purge`, `queue_expiry`,
`lite_expiry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Final

from bench.harness import Case, Options, Sample, Scale, alternate
from bench.peers.quarry import Quarry
from bench.queue_load import send_body
from bench.scratch_store import BODY_SIZE, TOPIC
from bench.send_load import PERCENTILES, stats
from bench.waiting_sends import SendSampler, percentile_ms
from quarry_mq.kv.options import MIB
from quarry_mq.store.settings import Durability

QUESTION: Final = "Do sends wait for flushes, compactions, changes of the segment, or looks for garbage?"
CLIENTS: Final = 32
RECORD_SIZE: Final = 1_290
"""Approximate bytes of a record in the log."""

SHARES: Final = (*PERCENTILES, ("longest", 1.0))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of work that a broker does beside sends."""

    settings: Mapping[str, str]
    done: Callable[[dict[str, float], bool], float]
    """Counts the work by the broker's metrics; the flag tells whether the broker has these settings."""
    program: Sequence[str] = ("quarry_mq.cli.main",)


KINDS: Final = {
    "flushes of the log": Kind(
        {"QUARRY_STORE_FLUSH_INTERVAL_MS": "10"}, lambda seen, _: seen["quarry_flush_sends_count"]
    ),
    "changes of the segment": Kind({"QUARRY_STORE_SEGMENT_SIZE": "16MiB"}, lambda seen, _: seen["quarry_log_segments"]),
    "flushes of the queues, and compactions": Kind(
        {"QUARRY_STORE_QUEUE_FLUSH_SIZE": "4MiB"},
        lambda seen, often: seen['quarry_sends_total{outcome="stored"}'] * RECORD_SIZE / MIB / (4 if often else 256),
    ),
    "looks for garbage": Kind(
        {}, lambda seen, _: seen["quarry_garbage_pause_seconds_count"], ("bench.peers.eager_garbage", "10")
    ),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Seconds of each sample, and of load before the first one."""

    sample_s: float
    warm_s: float
    rounds: int


SIZES: Final = {
    Scale.FULL: Sizes(sample_s=6, warm_s=3, rounds=5),
    Scale.QUICK: Sizes(sample_s=2, warm_s=1, rounds=1),
    Scale.TINY: Sizes(sample_s=0.3, warm_s=0.1, rounds=1),
}


def run(options: Options) -> list[Case]:
    with closing(Quarry(options.scratch / "quiet", Durability.ASYNC)) as quiet:
        quiet.start()
        return [_case(options, quiet, name, kind) for name, kind in KINDS.items()]


def _case(options: Options, quiet: Quarry, name: str, kind: Kind) -> Case:
    sizes, random = SIZES[options.scale], Random(options.seed)
    with closing(Quarry(options.scratch / name.replace(" ", "-"), Durability.ASYNC, kind.settings)) as busy:
        busy.start(program=kind.program)
        found: dict[Quarry, list[float]] = {busy: [], quiet: []}
        done = dict.fromkeys(found, 0.0)
        sends = SendSampler(random, CLIENTS, send_body(TOPIC, random.randbytes(BODY_SIZE)))

        def sample(broker: Quarry) -> Sample:
            before = kind.done(stats(broker), broker is busy)
            taken = sends.sample(broker, sizes.sample_s, found[broker])
            done[broker] += kind.done(stats(broker), broker is busy) - before
            return taken

        for broker in (busy, quiet):
            sends.sample(broker, sizes.warm_s, [])
        ours, theirs = alternate(sizes.rounds, lambda: sample(busy), lambda: sample(quiet))
    seconds = sizes.rounds * sizes.sample_s
    details: dict[str, object] = {
        "per_second_of_it": round(done[busy] / seconds, 2),
        "peer_per_second_of_it": round(done[quiet] / seconds, 2),
    }
    for percent, share in SHARES:
        mine, others = (round(percentile_ms(found[each], share), 2) for each in (busy, quiet))
        details |= {f"{percent}_ms": mine, f"peer_{percent}_ms": others, f"{percent}_ratio": round(mine / others, 2)}
    return Case(
        name=f"many {name}",
        unit="messages",
        peer="the same load with the defaults",
        ours=ours,
        theirs=theirs,
        details=details,
    )
