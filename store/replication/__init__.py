"""The package replicates metadata: rows that all stores of a cluster share (topics, groups, users, rules and members),
each with a version.
"""

from quarry_mq.store.replication.change_log import ChangeLog
from quarry_mq.store.replication.horizons import NOTHING_TOLD, Horizons
from quarry_mq.store.replication.replicated_rows import PAGE_BYTES_MAX, PAGE_ROWS_MAX, ReplicatedRows
from quarry_mq.store.replication.row_checks import DeletionsMissed, PeerAhead, PeerMissed, RowRefused
from quarry_mq.store.replication.rows import (
    AHEAD_MAX_MS,
    Applied,
    ChangePage,
    Conflict,
    Position,
    SharedKind,
    SharedRow,
    Version,
    is_shared,
    known_kind,
    member_id,
)

__all__ = [
    "AHEAD_MAX_MS",
    "NOTHING_TOLD",
    "PAGE_BYTES_MAX",
    "PAGE_ROWS_MAX",
    "Applied",
    "ChangeLog",
    "ChangePage",
    "Conflict",
    "DeletionsMissed",
    "Horizons",
    "PeerAhead",
    "PeerMissed",
    "Position",
    "ReplicatedRows",
    "RowRefused",
    "SharedKind",
    "SharedRow",
    "Version",
    "is_shared",
    "known_kind",
    "member_id",
]
