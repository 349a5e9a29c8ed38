"""The second database of a store, `<store>/quarry/`, holds metadata and delivery state and has a write-ahead log.

It never holds the only copy of a message. It has one column family per table:

| family     | owner                             | holds |
|------------|-----------------------------------|-------|
| `topics`   | store.metadata.topics             | topic name -> topic JSON |
| `groups`   | store.metadata.groups             | group name -> group JSON |
| `offsets`  | store.metadata.offsets            | group, topic, queue -> next queue offset |
| `inflight` | server.delivery.state.inflight    | group, topic, queue, offset -> one delivery not yet acknowledged |
| `meta`     | several, see below                | single rows and small tables that need no separate family |
| `users`    | store.security.users              | user name -> user JSON, secrets sealed |
| `policies` | store.security.policies           | user name -> JSON of its rules |
| `shared`   | store.replication                 | versions of topics, groups, users and rules in a cluster |
| `lite`     | store.metadata.lite_subscriptions | which clients subscribe to which lite topics |

Rows of `meta` are written by store.state.identity (what this store is), store.state.jobs, store.state.deleted_topics,
store.metadata.owners, store.migration.rows, store.verify.verdicts, server.settings.live_settings and
server.cluster.handover.handover_row. Each has its own keys.

A store that an older version made has no `users`, `policies`, `shared` or `lite`: they are added when it is opened for
writing, and a reading open goes without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from quarry_mq.kv.options import FamilyOptions
from quarry_mq.kv.rocks import RocksEngine, list_families

TOPICS: Final = "topics"
GROUPS: Final = "groups"
OFFSETS: Final = "offsets"
INFLIGHT: Final = "inflight"
META: Final = "meta"
USERS: Final = "users"
POLICIES: Final = "policies"
SHARED: Final = "shared"
LITE: Final = "lite"
FAMILIES: Final = (TOPICS, GROUPS, OFFSETS, INFLIGHT, META, USERS, POLICIES, SHARED, LITE)
ADDED_FAMILIES: Final = frozenset({USERS, POLICIES, SHARED, LITE})
"""The families that a store of an older version lacks."""


log = structlog.get_logger(__name__)


def open_state_engine(directory: Path, *, create: bool, read_only: bool = False) -> RocksEngine:
    """Open `<store>/quarry/`. Raises kv.EngineMissing, kv.EngineLocked or kv.EngineCorrupt."""
    missing = frozenset[str]() if create else frozenset(FAMILIES).difference(list_families(directory))
    is_older = bool(missing) and missing <= ADDED_FAMILIES
    names = [name for name in FAMILIES if name not in missing or not (is_older and read_only)]
    engine = RocksEngine.open(
        directory,
        {name: FamilyOptions() for name in names},
        create=create or (is_older and not read_only),
        read_only=read_only,
        write_ahead_log=True,
    )
    for unread in engine.unread_changes:
        log.warning("the last changes of topics, groups and positions are lost", directory=str(directory), cause=unread)
    return engine
