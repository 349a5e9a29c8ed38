"""Make the text that a broker prints on standard output when it is ready, and decide whether anybody reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from quarry_mq.server.addresses import Address
from quarry_mq.server.process.host_commands import CONTAINER, KUBERNETES

READY_LINE: Final = "Quarry is ready."
"""The first line of the text: the program that started the broker waits for it."""

WAITS: Final = "SHARDS_SUPERVISOR"
"""The environment variable by which a program says that it waits for the first line of the text."""

SELF_SIGNED: Final = """
TLS with the self-signed certificate {}: nobody on the network can read what clients send.
It proves no broker's identity and keeps no client out: network.tls_certificate and security.authentication do.
"""


def is_for_people(log_format: str, environment: Mapping[str, str], *, is_terminal: bool) -> bool:
    """Return whether the text is printed. Otherwise the log has the same as one event.

    The output of a container is collected line by line together with the log, and a text would stand among JSON lines.
    """
    if WAITS in environment:
        return True
    is_collected = not is_terminal and not {CONTAINER, KUBERNETES}.isdisjoint(environment)
    return log_format == "console" or (log_format == "auto" and not is_collected)


def banner(
    *,
    listen: str,
    admin: str,
    http: str,
    store: str,
    console: str = "",
    names: str = "",
    needs_tls: bool = False,
    self_signed: Path | None = None,
) -> str:
    """Return the broker's addresses (`http` and `console` are URLs) and three lines of Python that send and receive.

    `names` is the name server address of remoting clients; empty without one.
    `self_signed` is the certificate of a broker that needs TLS and was given none.
    """
    first, tls, protection = "", "", ""
    if needs_tls:
        authority = self_signed or "AUTHORITY.pem"
        first, tls = f"  # with GRPC_DEFAULT_SSL_ROOTS_FILE_PATH={authority} in the environment\n", ", tls_enable=True"
    if self_signed is not None:
        protection = SELF_SIGNED.format(self_signed)
    remoting = f"  name server {names}     (remoting, clients and tools of RocketMQ 4)\n" if names else ""
    pages = f"  console     {console}     (for browsers)\n" if console else ""
    return f"""{READY_LINE}
  messaging   {listen}     (gRPC, official RocketMQ 5 clients)
{remoting}  admin       {admin}     (quarry topic, quarry group)
  http        {http}/metrics  /healthz  /readyz
{pages}  store       {store}
{protection}
Send and receive in three lines of Python (pip install rocketmq-python-client):
{first}  import rocketmq as mq; at = mq.ClientConfiguration("{Address.parse(listen).from_here}", mq.Credentials())
  p = mq.Producer(at{tls}); p.startup(); m = mq.Message(); m.topic, m.body = "demo", b"hello"; print(p.send(m))
  c = mq.SimpleConsumer(at, "me", {{"demo": mq.FilterExpression()}}{tls}); c.startup(); print(c.receive(32, 15)[0].body)
"""
