"""Lite simple consumer of `rocketmq-python-client`: the commands of simple consumers and of lite topics."""

from __future__ import annotations

import argparse

from rocketmq import LiteSimpleConsumer

from tests.e2e.python.line_protocol import TLS, configuration, say, serve
from tests.e2e.python.lite_line_protocol import subscription_commands
from tests.e2e.python.simple_consumer import Deliveries


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--await-s", type=int, default=5)
    options = parser.parse_args()
    consumer = LiteSimpleConsumer(
        options.topic,
        configuration(options.endpoint),
        options.group,
        await_duration=options.await_s,
        tls_enable=TLS,
    )
    consumer.startup()
    say({"ready": "lite simple consumer"})
    serve(Deliveries(consumer).commands() | subscription_commands(consumer))
    consumer.shutdown()


if __name__ == "__main__":
    main()
