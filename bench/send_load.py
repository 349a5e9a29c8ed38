"""Sends continuously to a broker in its own process, and measures the sends while other work goes on there."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from random import Random
from typing import Final, NamedTuple

import grpc

from bench.harness import Sample, cpu_s_of
from bench.peers.quarry import Quarry
from bench.raw_client import RawClient, make_requests
from bench.scratch_store import BODY_SIZE, TOPIC
from bench.waiting_sends import PATH, WaitingSends, after, percentile_ms
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as admin
from quarry_mq.protocol.proto.quarry.admin.v1.admin_pb2_grpc import AdminServiceStub

EXPIRY_TIMEOUT_S: Final = 600.0
LOOK_INTERVAL_S: Final = 0.2
QUIET_AFTER_S: Final = 2.0
PERCENTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))


class Stretch(NamedTuple):
    """The measurements of some seconds of load."""

    sample: Sample
    latencies_s: list[float]
    flushes: float
    flushed_sends: float

    def joined(self, later: Stretch) -> Stretch:
        """Return both stretches as one."""
        return Stretch(
            self.sample.joined(later.sample),
            self.latencies_s + later.latencies_s,
            self.flushes + later.flushes,
            self.flushed_sends + later.flushed_sends,
        )

    @property
    def sends_per_flush(self) -> float:
        return self.flushed_sends / max(1.0, self.flushes)

    def percentile_ms(self, share: float) -> float:
        return percentile_ms(self.latencies_s, share)


class SendLoad:
    """Sends continuously, one call at a time on each connection."""

    def __init__(self, broker: Quarry, client: RawClient, requests: list[bytes]) -> None:
        self._broker = broker
        self._sends = WaitingSends(client, requests.__getitem__)

    def until(self, is_over: Callable[[], bool]) -> Stretch:
        """Send until it is over. Calls that are open then are counted in the next stretch."""
        flushes, sends = _flush_stats(self._broker)
        cpu_s, started_s = cpu_s_of(self._broker.pid), time.perf_counter()
        latencies_s = self._sends.until(is_over)
        wall_s = time.perf_counter() - started_s
        sample = Sample(len(latencies_s), wall_s, cpu_s_of(self._broker.pid) - cpu_s)
        flushes_after, sends_after = _flush_stats(self._broker)
        return Stretch(sample, latencies_s, flushes_after - flushes, sends_after - sends)

    def check(self) -> None:
        """Check that sends succeeded: a server that refuses sends is fast."""
        failed = stats(self._broker)['quarry_sends_total{outcome="failed"}']
        if failed:
            raise RuntimeError(f"{failed:.0f} sends were refused")


class Disturbed(NamedTuple):
    """A load with other work beside it, and without."""

    before: Stretch
    during: Stretch
    after: Stretch

    @property
    def quiet(self) -> Stretch:
        """Hold both stretches without the other work."""
        return self.before.joined(self.after)

    @property
    def p99_ratio(self) -> float:
        return round(self.during.percentile_ms(0.99) / self.quiet.percentile_ms(0.99), 2)

    @property
    def ours(self) -> list[Sample]:
        """The samples with the other work, as many as there are of the peer."""
        return [self.during.sample] * 2

    @property
    def theirs(self) -> list[Sample]:
        return [self.before.sample, self.after.sample]


def disturbed(
    broker: Quarry, random: Random, work: Callable[[], None], *, clients: int, requests: int, quiet_s: float
) -> Disturbed:
    """Load the broker with `clients` connections while the work is done beside it, and for `quiet_s` before and after.

    `requests` is the most sends of one connection.
    """
    with closing(RawClient(broker.endpoint, clients)) as client:
        load = SendLoad(broker, client, make_requests(random, PATH, send_body(random), 0, requests))
        load.until(after(quiet_s / 3))  # topic and files are made, code is warm
        before = load.until(after(quiet_s))
        with beside(work) as is_over:
            during = load.until(is_over)
        load.until(after(QUIET_AFTER_S))
        quiet_after = load.until(after(quiet_s))
        load.check()
    return Disturbed(before, during, quiet_after)


def percentiles(**stretches: Stretch) -> dict[str, float]:
    """Return the latencies of each stretch, by its name."""
    return {
        f"{name}_{percent}_ms": round(stretch.percentile_ms(share), 2)
        for name, stretch in stretches.items()
        for percent, share in PERCENTILES
    }


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Run the work on a thread beside the load; yields a function that tells whether it is over.

    Raises what the work raised.
    """
    with ThreadPoolExecutor(max_workers=1) as threads:
        working = threads.submit(work)
        yield working.done
        working.result()


def expire_segments(broker: Quarry, *, rewrite_queues: bool = False) -> int:
    """Let the old segments expire at once; return how many did.

    With `rewrite_queues` the tables of queues are rewritten.
    """
    request = admin.ExpireSegmentsRequest(rewrite_queues=rewrite_queues)
    with admin_channel(broker) as channel:
        stub = AdminServiceStub(channel)
        return len(stub.ExpireSegments(request, timeout=EXPIRY_TIMEOUT_S).segments)


def await_stats(broker: Quarry, holds: Callable[[dict[str, float]], bool]) -> None:
    """Read the broker's metrics until the condition holds. Raises RuntimeError after ten minutes."""
    give_up_s = time.monotonic() + EXPIRY_TIMEOUT_S
    while not holds(stats(broker)):
        if time.monotonic() > give_up_s:
            raise RuntimeError("the broker does not come to an end with what has expired")
        time.sleep(LOOK_INTERVAL_S)


def admin_channel(broker: Quarry) -> grpc.Channel:
    """Open a channel to the broker's admin services, whatever proxy the environment names."""
    return grpc.insecure_channel(broker.admin, options=[("grpc.enable_http_proxy", 0)])


def _flush_stats(broker: Quarry) -> tuple[float, float]:
    """Return how many flushes there were, and how many sends they made durable."""
    seen = stats(broker)
    return seen["quarry_flush_sends_count"], seen["quarry_flush_sends_sum"]


def stats(broker: Quarry) -> dict[str, float]:
    """Return the broker's metrics."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def send_body(random: Random, topic: str = TOPIC) -> bytes:
    """Return a send of one message."""
    request = service.SendMessageRequest()
    message = request.messages.add(body=random.randbytes(BODY_SIZE))
    message.topic.name = topic
    message.system_properties.message_id = f"01{random.getrandbits(128):032X}"
    message.system_properties.tag = "created"
    return request.SerializeToString()
