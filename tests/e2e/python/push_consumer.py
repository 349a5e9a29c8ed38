"""Push consumer of `rocketmq-python-client`: one line per consumed message until `close`."""

from __future__ import annotations

import argparse

from rocketmq import (
    ConsumeResult,
    FilterExpression,
    Message,
    MessageListener,
    PushConsumer,
)

from tests.e2e.python.line_protocol import FILTER_TYPES, TLS, commands, configuration, message_line, say


class Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    """Shows each message; fails it while its delivery attempt is at most `failed_attempts`."""

    def __init__(self, failed_attempts: int) -> None:
        self._failed_attempts = failed_attempts

    def consume(self, message: Message) -> ConsumeResult:
        failed = message.delivery_attempt <= self._failed_attempts
        say({"message": message_line(message) | {"failed": failed}})
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--filter", default="*")
    parser.add_argument("--filter-type", choices=FILTER_TYPES, default="tag")
    parser.add_argument("--failed-attempts", type=int, default=0)
    options = parser.parse_args()
    consumer = PushConsumer(
        configuration(options.endpoint),
        options.group,
        Listener(options.failed_attempts),
        {topic: FilterExpression(options.filter, FILTER_TYPES[options.filter_type]) for topic in options.topic},
        tls_enable=TLS,
    )
    consumer.startup()
    say({"ready": "push consumer"})
    for command in commands():
        say({"error": {"type": "UnknownCommand", "text": command["command"], "code": None}})
    consumer.shutdown()


if __name__ == "__main__":
    main()
