"""`quarry replica list` shows the copies of a live broker's store."""

from __future__ import annotations

from typing import Final

from quarry_mq.cli.online.connection.administration import known, service_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.output import print_rows
from quarry_mq.protocol.proto.quarry.admin.v1 import replicas_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.replicas_pb2_grpc import ReplicaServiceStub

CALL_TIMEOUT_S: Final = 10.0
COLUMNS: Final = (
    "name",
    "role",
    "term",
    "connected",
    "seeding",
    "address",
    "missingBytes",
    "missingChanges",
    "lagSeconds",
)


def list_replicas(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """List the primary and the copies of its store, with how far each copy is behind.

    Ask the primary: a copy that follows has no admin port. Its `/readyz` says how far it is.
    """
    with service_port(admin, ReplicaServiceStub) as broker:
        found = broker.ListReplicas(pb.ListReplicasRequest(), timeout=CALL_TIMEOUT_S).replicas
        print_rows(map(_fields, found), COLUMNS, as_json=as_json, kind="copies: replication.mode is off")


def _fields(replica: pb.Replica) -> dict[str, object]:
    lag_ms = known(replica, "lag_ms")
    return {
        "name": replica.name,
        "role": replica.role,
        "term": known(replica, "term"),
        "connected": replica.is_connected,
        "seeding": replica.is_seeding,
        "address": replica.address or None,
        "flushedOffset": replica.flushed_offset,
        "dispatchedOffset": replica.dispatched_offset,
        "missingBytes": known(replica, "lag_bytes"),
        "missingChanges": known(replica, "lag_changes"),
        "lagSeconds": None if lag_ms is None else lag_ms / 1000,
    }
