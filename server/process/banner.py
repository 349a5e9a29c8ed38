"""Make the text that a broker prints on standard output when it is ready."""

from __future__ import annotations

from typing import Final

READY_LINE: Final = "Quarry is ready."
"""The first line of the text: the program that started the broker waits for it."""


def banner(*, listen: str, admin: str, http: str, store: str, console: str = "", needs_tls: bool = False) -> str:
    """Return the broker's addresses (`http` and `console` are URLs) and three lines of Python that send and receive."""
    first, tls = "", ""
    if needs_tls:
        first, tls = "  # with GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=AUTHORITY.pem in the environment\n", ", tls_enable=True"
    pages = f"  console     {console}     (for browsers)\n" if console else ""
    return f"""{READY_LINE}
  messaging   {listen}     (gRPC, official RocketMQ 5 clients)
  admin       {admin}     (quarry topic, quarry group)
  http        {http}/metrics  /healthz  /readyz
{pages}  store       {store}

Send and receive in three lines of Python (pip install rocketmq-python-client):
{first}  import rocketmq as mq; at = mq.ClientConfiguration("{listen}", mq.Credentials())
  p = mq.Producer(at{tls}); p.startup(); m = mq.Message(); m.topic, m.body = "demo", b"hello"; print(p.send(m))
  c = mq.SimpleConsumer(at, "me", {{"demo": mq.FilterExpression()}}{tls}); c.startup(); print(c.receive(32, 15)[0].body)
"""
