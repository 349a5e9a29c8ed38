"""Plain values for what a broker reports. None stands for an unknown value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from quarry_mq.cli.online.connection.concerns import Concern
from quarry_mq.cli.online.top.stats import Histogram


class Order(Enum):
    """The order of topics and groups. The value is its label."""

    BUSIEST = "busiest first"
    LAG = "largest lag first"
    NAME = "by name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a call, "send" or "receive", with the durations of all its runs since the broker's start."""

    call: str
    name: str
    histogram: Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The broker's process. CPU seconds count from its start."""

    cpu_seconds: float
    resident_bytes: int | None
    open_files: int | None
    loop_late_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The state of a whole broker, as in `quarry.admin.v1.Overview`.

    With `lag_is_whole` False the lag is a lower bound.
    """

    name: str
    cluster: str
    version: str
    started_at_ms: int
    at_ms: int
    readiness: str
    concerns: tuple[Concern, ...]
    sent_per_second: float
    received_per_second: float
    sent: int
    received: int
    sent_today: int | None
    received_today: int | None
    sent_yesterday: int | None
    received_yesterday: int | None
    connections: int | None
    producers: int
    consumers: int
    topics: int | None
    groups: int | None
    disk_total: int | None
    disk_free: int | None
    log_size: int
    oldest_stored_at_ms: int | None
    ready_messages: int | None
    in_flight_messages: int | None
    lag_ms: int | None
    lag_is_whole: bool
    timers: int | None
    transactions: int | None
    lite_topics: int | None
    migration_phase: str
    migration_lag_bytes: int | None
    open_jobs: int
    stages: tuple[Stage, ...]
    process: Process | None

    @property
    def disk_used_share(self) -> float | None:
        """Return the used share (0 … 1) of the volume with the log."""
        if not self.disk_total or self.disk_free is None:
            return None
        return 1 - self.disk_free / self.disk_total


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of the cluster. `overview` None: it did not answer, and `problem` says why."""

    name: str
    is_self: bool
    state: str
    is_reachable: bool
    address: str
    admin_address: str
    version: str
    overview: Overview | None
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Series by name. `values[j]` of each was measured at `at_ms[j]`; NaN is unknown."""

    interval_ms: int
    at_ms: tuple[int, ...]
    series: dict[str, tuple[float, ...]]

    def most(self, name: str) -> float | None:
        """Return the highest value of a series."""
        return max((value for value in self.series.get(name, ()) if not math.isnan(value)), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A group in a topic."""

    group: str
    topic: str
    ready: int | None
    in_flight: int | None
    lag_ms: int | None
    received_per_second: float | None
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its statistics; `pairs` are the first of its groups by name."""

    name: str
    kind: str
    read_queues: int
    write_queues: int
    messages: int | None
    estimated_bytes: int | None
    sent_per_second: float | None
    received_per_second: float | None
    last_stored_at_ms: int | None
    pairs: tuple[Pair, ...]
    group_count: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group with its statistics over all topics; `pairs` are the first of its topics by name."""

    name: str
    is_fifo: bool
    max_attempts: int
    is_enabled: bool
    consumers: int
    pairs: tuple[Pair, ...]
    topic_count: int | None
    ready: int | None
    in_flight: int | None
    lag_ms: int | None
    dead_letters: int | None

    @property
    def received_per_second(self) -> float | None:
        """Return the rate over all topics; None if one of them is not known."""
        rates = [pair.received_per_second for pair in self.pairs if pair.received_per_second is not None]
        return sum(rates) if rates and len(rates) == self.topic_count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPage:
    """A page of topics. `matching` counts all matching names, on this page or not."""

    rows: tuple[Topic, ...]
    has_more: bool
    matching: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPage:
    """A page of groups. `matching` counts all matching names, on this page or not."""

    rows: tuple[Group, ...]
    has_more: bool
    matching: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of the migration that was taken."""

    at_ms: int
    before: str
    after: str
    asked_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The migration of the consume queues between files and RocksDB. One of `next` and `next_refused` is set."""

    phase: str
    read: str
    assign: str
    next: str | None
    next_refused: str | None
    comparison_first: str | None
    back: str | None
    back_refused: str | None
    lag_bytes: int
    backfill_done: int | None
    backfill_total: int | None
    compared_queues: int | None
    compared_units: int | None
    differences: int | None
    doubt: str | None
    removing: bool
    problem: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job. Its id is the time of its request, in milliseconds since the Unix epoch."""

    id: int
    kind: str
    asked_by: str
    is_dry_run: bool
    state: str
    done: int
    total: int | None
    counts: dict[str, int]
    remark: str | None
    ended_at_ms: int | None

    @property
    def is_open(self) -> bool:
        return self.state in ("waiting", "running")

    @property
    def share(self) -> float | None:
        """Return the share (0 … 1) of the work that is done."""
        if self.total is None:
            return None
        return min(1.0, self.done / self.total) if self.total > 0 else 1.0
