"""The package replicates metadata: rows that all stores of a cluster share (topics, groups, users, rules and members),
each with a version.
"""

from quarry_mq.store.replication.horizons import NOTHING_TOLD, Horizons
from quarry_mq.store.replication.ledger import Ledger
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
from quarry_mq.store.replication.shared_rows import PAGE_BYTES_MAX, PAGE_ROWS_MAX, SharedRows

__all__ = [
    "AHEAD_MAX_MS",
    "NOTHING_TOLD",
    "PAGE_BYTES_MAX",
    "PAGE_ROWS_MAX",
    "Applied",
    "ChangePage",
    "Conflict",
    "DeletionsMissed",
    "Horizons",
    "Ledger",
    "PeerAhead",
    "PeerMissed",
    "Position",
    "RowRefused",
    "SharedKind",
    "SharedRow",
    "SharedRows",
    "Version",
    "is_shared",
    "known_kind",
    "member_id",
]
