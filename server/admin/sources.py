"""The parts of a broker from which statistics and concerns are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quarry_mq.server.cluster.cluster import Cluster
from quarry_mq.server.counters import RecentRates
from quarry_mq.server.front import Front
from quarry_mq.server.maintenance.maintenance import Maintenance
from quarry_mq.server.observability.instrumentation import Background
from quarry_mq.server.process.certificates import Certificates
from quarry_mq.server.process.health import HealthState
from quarry_mq.server.process.process_metrics import ProcessStats
from quarry_mq.server.rpc.messaging import Components, Messaging
from quarry_mq.server.security.denied_callers import DeniedCaller
from quarry_mq.server.wire.settings import ClientKind
from quarry_mq.store.security.model import SealedUser


class AdminAccess(NamedTuple):
    """Say who may administer the broker.

    `open_to_everybody` has the ports at which any client may, by name, with their addresses. `lacks_super` returns
    whether the broker asks for users and no super user may log in. `denied` returns the callers whose calls are denied,
    `user` a user by name; None if there is none.
    """

    open_to_everybody: Mapping[str, str]
    lacks_super: Callable[[], bool]
    denied: Callable[[], Sequence[DeniedCaller]]
    user: Callable[[str], SealedUser | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sources:
    """Hold all these parts. `process` is None if it is not measured."""

    messaging: Messaging
    background: Background
    maintenance: Maintenance
    front: Front
    health: HealthState
    certificates: Certificates
    process: ProcessStats | None
    access: AdminAccess

    @property
    def cluster(self) -> Cluster | None:
        return self.components.cluster

    @property
    def components(self) -> Components:
        return self.messaging.components

    @property
    def rates(self) -> RecentRates:
        return self.messaging.rates

    @property
    def connections(self) -> int | None:
        stats = self.front.stats
        return None if stats is None else stats.connections_open

    @property
    def producers(self) -> int:
        return self.components.edge.clients.kinds.get(ClientKind.PRODUCER, 0)

    @property
    def consumers(self) -> int:
        return sum(self.components.edge.clients.kinds.values()) - self.producers

    @property
    def dispatch_lag_bytes(self) -> int:
        """The bytes of the log that are not dispatched yet, so that no consumer can see them."""
        messages = self.components.store.messages
        return messages.appended_up_to - messages.dispatched_up_to

    @property
    def migration_lag_bytes(self) -> int | None:
        """The bytes of the log that only one of files and RocksDB has dispatched; None if one of both is unused."""
        migration = self.components.store.migration
        phase = migration.phase
        return migration.stats().lag_bytes if phase.writes_files and phase.writes_rocksdb else None

    @property
    def lite_topics(self) -> int | None:
        counts = self.maintenance.lite_topics.counts
        return counts.total if counts.is_complete else None
