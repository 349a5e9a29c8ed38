"""List what needs an operator's attention, one line each, from state that the broker has in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quarry_mq.server.admin.figures.history import History
from quarry_mq.server.admin.figures.recorder import LOOP_LATE
from quarry_mq.server.admin.figures.sources import Sources
from quarry_mq.server.process.certificates import WARN_BEFORE_S

DISPATCH_LAG_BYTES: Final = 64 << 20
"""Bytes of dispatch lag that flushes and batches do not cause on a disk that keeps up."""
LOOP_LATE_S: Final = 1.0
"""A third of the time that clients wait for a send."""
FAULTS_SHOWN: Final = 3
DAY_S: Final = 86_400


def concerns(sources: Sources, history: History) -> Iterator[str]:
    """Return what needs attention, the worst first; nothing if all is well."""
    yield from _health(sources)
    yield from _faults(sources)
    yield from _upkeep(sources)
    yield from _certificate(sources)
    yield from _members(sources)
    late_s = history.latest(LOOP_LATE)
    if late_s is not None and late_s >= LOOP_LATE_S:
        yield f"the event loop was {late_s:.1f} s late within the last ten seconds"


def _health(sources: Sources) -> Iterator[str]:
    health = sources.health.look()
    if health.reason:
        yield f"poisoned: {health.reason}; only a restart helps"
    if health.sends_refused:
        yield f"sends are refused: {health.sends_refused}"
    behind = sources.dispatch_lag_bytes
    if behind > DISPATCH_LAG_BYTES:
        yield f"dispatch is {behind} bytes behind: consumers do not see them yet"


def _faults(sources: Sources) -> Iterator[str]:
    found = sources.components.edge.faults.recent()
    yield from found[:FAULTS_SHOWN]
    if len(found) > FAULTS_SHOWN:
        yield f"{len(found) - FAULTS_SHOWN} more faults within five minutes: the log has them"


def _upkeep(sources: Sources) -> Iterator[str]:
    space, force_percent = sources.upkeep.retention.log_space, sources.upkeep.retention.force_percent
    if space is not None and space.used_percent >= force_percent:
        yield f"the disk is {space.used_percent} % full: from {force_percent} % on segments go before their time"
    for step, reason in sources.upkeep.retention.complaints.items():
        yield f"{step} of segments is held up: {reason}"
    for name, address in sources.open_to_everybody.items():
        yield f"network.{name} = {address} asks nobody who he is: whoever reaches it administers the broker"
    if sources.upkeep.descriptors.concern:
        yield sources.upkeep.descriptors.concern
    problem = sources.upkeep.migration.problem
    if problem is not None:
        yield f"migration is held up: {problem}"


def _certificate(sources: Sources) -> Iterator[str]:
    expires_s = sources.certificates.expires_s
    if expires_s is None:
        return
    left_s = expires_s - sources.components.clock.wall_ms() / 1000
    if left_s <= 0:
        yield "the TLS certificate has expired"
    elif left_s < WARN_BEFORE_S:
        yield f"the TLS certificate expires in {left_s / DAY_S:.0f} days"


def _members(sources: Sources) -> Iterator[str]:
    if sources.cluster is None:
        return
    for each in sources.cluster.members.all():
        if not each.is_reachable:
            yield f"member {each.member.name} is not reachable"
