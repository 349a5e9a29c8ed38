"""`quarry stats` shows the traffic of a live broker."""

from __future__ import annotations

from typing import Final

from quarry_mq.cli.online.connection.administration import official_port
from quarry_mq.cli.online.connection.arguments import ADMIN_DEFAULT, Admin, Json
from quarry_mq.cli.terminal.output import print_object
from quarry_mq.protocol.proto.apache.rocketmq.v2 import admin_pb2 as pb

CALL_TIMEOUT_S: Final = 10.0


def stats(*, admin: Admin = ADMIN_DEFAULT, as_json: Json = False) -> None:
    """Show recent messages per second, open connections, and clients by kind.

    Rates are those of the last ten seconds.
    """
    with official_port(admin) as broker:
        answer = broker.call("GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest(), timeout_s=CALL_TIMEOUT_S)
    fields = {
        "name": answer.proxy_name,
        "version": answer.version,
        "sentPerSecond": round(answer.in_tps, 1),
        "receivedPerSecond": round(answer.out_tps, 1),
        "connections": None if answer.connections < 0 else answer.connections,
        "producers": answer.producers,
        "consumers": answer.consumers,
    }
    print_object(fields, as_json=as_json)
