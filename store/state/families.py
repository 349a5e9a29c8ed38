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

from typing import Final

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
