"""The paths of members' calls, and the translation of shared rows to and from their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from quarry_mq.protocol.proto.quarry.cluster.v1 import cluster_pb2 as pb
from quarry_mq.store.errors import Invalid
from quarry_mq.store.replication import Horizons, Position, SharedRow, Version, known_kind

SERVICE: Final[str] = pb.DESCRIPTOR.services_by_name["ClusterService"].full_name
EXCHANGE: Final = f"/{SERVICE}/Exchange"
NUDGE: Final = f"/{SERVICE}/Nudge"
CONFIRM: Final = f"/{SERVICE}/Confirm"
CONSUMED: Final = f"/{SERVICE}/Consumed"
FORWARD: Final = f"/{SERVICE}/Forward"
CHANGE_LITE: Final = f"/{SERVICE}/ChangeLite"
OVERVIEW: Final = f"/{SERVICE}/Overview"
LEFT_IN_ORDER: Final = f"/{SERVICE}/LeftInOrder"


HORIZONS_MAX: Final = 1_000


def to_row(message: pb.Row) -> SharedRow:
    """Translate a row. The store checks its content and kind, since a newer version may know more kinds."""
    return SharedRow(
        kind=known_kind(message.kind),
        name=message.name,
        version=_version(message.version),
        based_on=_version(message.based_on) if message.HasField("based_on") else None,
        value=message.value if message.HasField("value") else None,
        seen=tuple(map(_version, message.seen)),
    )


def from_row(row: SharedRow) -> pb.Row:
    return pb.Row(
        kind=row.kind,
        name=row.name,
        version=_from_version(row.version),
        based_on=None if row.based_on is None else _from_version(row.based_on),
        value=row.value,
        seen=map(_from_version, row.seen),
    )


def to_position(message: pb.Position) -> Position:
    return Position(message.incarnation, message.sequence)


def from_position(position: Position) -> pb.Position:
    return pb.Position(incarnation=position.incarnation, sequence=position.sequence)


def to_horizons(message: pb.ExchangeResponse) -> Horizons:
    """Translate horizons; they are empty from a member of an older version. Raises Invalid for too many members."""
    if len(message.known) + len(message.forgotten) > 2 * HORIZONS_MAX:
        raise Invalid(f"a page names more than {HORIZONS_MAX} members")
    return Horizons(
        {each.name: each.sequence for each in message.known}, {each.name: each.sequence for each in message.forgotten}
    )


def from_horizons(here: Mapping[str, int]) -> Iterator[pb.Horizon]:
    return (pb.Horizon(name=name, sequence=sequence) for name, sequence in here.items())


def _version(message: pb.Version) -> Version:
    return Version(message.time_ms, message.counter, message.member)


def _from_version(version: Version) -> pb.Version:
    return pb.Version(time_ms=version.time_ms, counter=version.counter, member=version.member)
