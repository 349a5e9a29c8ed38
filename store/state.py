"""The second database, `<store>/quarry/`: metadata and delivery state, with a write-ahead log.

It never holds the only copy of a message. One column family per table:

| family     | owner                         | holds |
|------------|-------------------------------|-------|
| `topics`   | store.metadata.topics         | topic name -> topic JSON |
| `groups`   | store.metadata.groups         | group name -> group JSON |
| `offsets`  | store.metadata.offsets        | group, topic, queue -> next queue offset |
| `inflight` | server.delivery.state.inflight      | group, topic, queue, offset -> one delivery not yet acknowledged |
| `meta`     | store.state                   | what this store is: origin, format version, migration progress |
| `users`    | store.security.users          | user name -> user JSON, secrets sealed |
| `policies` | store.security.policies       | user name -> JSON of its rules |
| `shared`   | store.shared                  | versions of topics, groups, users and rules in a cluster; its members |
| `lite`     | store.metadata.lite_subscriptions | which clients want which lite topics |

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
"""Those that a store of an older version does not have."""
