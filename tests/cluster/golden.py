"""Recorded exchanges of members of each version, and a store of one of them, byte for byte.

`python -m tests.cluster.golden` writes the folder of the present version, once, when a release is made. It is never
written again: later versions are tested against it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from quarry_mq.kv import KeyRange
from quarry_mq.kv.memory import MemoryEngine
from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.server.admin_port.cluster.service import from_horizons, from_position, from_row
from quarry_mq.server.cluster.membership import Member
from quarry_mq.store.metadata import Group
from quarry_mq.store.replication import Position, SharedKind
from quarry_mq.store.security.model import Action, Decision, Resource, Rule, Secret, User
from quarry_mq.store.state.identity import FAMILIES
from tests.replication.members import SECRET, gathered
from tests.replication.members import Member as Store
from tests.replication.members import member as store_of

GOLDEN: Final = Path(__file__).parent / "golden"
PRESENT: Final = "0.1"
NAME: Final = "quarry-0"


def example() -> Store:
    """A row of each kind, one that two have changed, and a deletion."""
    one, other = store_of(NAME), store_of("quarry-1", ManualClock(wall_ms=1_700_000_000_500))
    one.topic("orders", 4)
    one.topic("old")
    one.tables.groups.create(Group("billing", max_attempts=7))
    one.tables.users.create(User(name="anna", secrets=(Secret(1, SECRET, 1),), certificates=("CN=anna",)))
    rule = Rule(resource=Resource.parse("topic:orders"), actions=frozenset({Action.PUB}), decision=Decision.ALLOW)
    one.tables.policies.put_rule("anna", rule)
    own = Member(name=NAME, address="10.0.0.1:8081", tls_address=None, admin_address="10.0.0.1:8082", version="0.1.0")
    one.replicated.put(SharedKind.MEMBER, NAME, own.encode())
    gathered(one, other)
    other.topic("orders", 6)
    other.tables.topics.delete("old")
    gathered(one, other)
    one.topic("orders", 8)
    return one


def response_of(store: Store) -> pb.ExchangeResponse:
    page = store.replicated.changes(0)
    return pb.ExchangeResponse(
        name=store.name,
        rows=map(from_row, page.rows),
        since=page.since,
        until=from_position(Position(page.incarnation, page.until)),
        more=page.more,
        known=from_horizons(page.horizons.known),
        forgotten=from_horizons({"quarry-1": 1_690_000_000_000_000}),
    )


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    store = example()
    since = from_position(Position(b"0123456789abcdef", 1_700_000_000_000_001))
    request = pb.ExchangeRequest(name="quarry-1", address="10.0.0.2:8082", since=since, rows_max=1000)
    (folder / "request.bin").write_bytes(request.SerializeToString(deterministic=True))
    nudge = pb.NudgeRequest(name="quarry-1", address="10.0.0.2:8082")
    (folder / "nudge.bin").write_bytes(nudge.SerializeToString(deterministic=True))
    (folder / "response.bin").write_bytes(response_of(store).SerializeToString(deterministic=True))
    (folder / "store.json").write_text(json.dumps(dump(store), indent=1) + "\n")


def dump(store: Store) -> dict[str, dict[str, str]]:
    """All rows of `quarry/` by their families, in hexadecimal."""
    everything = KeyRange(b"", None)
    found = {
        name: {key.hex(): value.hex() for key, value in store.engine.family(name).scan(everything)} for name in FAMILIES
    }
    return {name: rows for name, rows in found.items() if rows}


def loaded(folder: Path) -> MemoryEngine:
    """The store of that version."""
    engine = MemoryEngine(FAMILIES, write_ahead_log=True)
    batch = engine.batch()
    for name, rows in json.loads((folder / "store.json").read_text()).items():
        for key, value in rows.items():
            batch.put(engine.family(name), bytes.fromhex(key), bytes.fromhex(value))
    engine.write(batch, sync=True)
    return engine


if __name__ == "__main__":
    write(GOLDEN / PRESENT)
