"""`quarry broker` shows what a live broker is."""

from __future__ import annotations

from typing import Final

from quarry_mq.cli.online.connection.administration import admin_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.cli.terminal.text import time_text
from quarry_mq.protocol.proto.quarry.admin.v1 import admin_pb2 as pb

CALL_TIMEOUT_S: Final = 10.0


def broker(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show a broker's name, version, address and store, and the size of its commit log.

    Offsets are bytes of the log: up to where it is written, durable, and visible to consumers.
    """
    with admin_port(admin) as port:
        answer = port.GetBroker(pb.GetBrokerRequest(), timeout=CALL_TIMEOUT_S)
    fields = {
        "name": answer.name,
        "cluster": answer.cluster,
        "version": answer.version,
        "startedAt": time_text(answer.started_at_ms),
        "advertised": answer.advertised_address,
        "store": answer.store_directory,
        "durability": answer.durability,
        "appendedOffset": answer.log.appended_offset,
        "flushedOffset": answer.log.flushed_offset,
        "dispatchedOffset": answer.log.dispatched_offset,
    }
    print_object(fields, as_json=as_json)
