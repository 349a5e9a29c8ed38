"""Lite push consumer of `rocketmq-python-client`: one line per consumed message, and the commands of lite topics."""

from __future__ import annotations

import argparse
import threading
from collections import Counter

from rocketmq import ConsumeResult, LitePushConsumer, Message, MessageListener

from tests.e2e.python.line_protocol import TLS, configuration, message_line, say, serve
from tests.e2e.python.lite_line_protocol import subscription_commands


class Listener(MessageListener):  # type: ignore[misc]  # the client has no types
    """Shows each message; fails it `failed_attempts` times, as counted here: the library does not count its own."""

    def __init__(self, failed_attempts: int) -> None:
        self._failed_attempts = failed_attempts
        self._lock = threading.Lock()
        self._attempts: Counter[str] = Counter()

    def consume(self, message: Message) -> ConsumeResult:
        with self._lock:
            self._attempts[message.message_id] += 1
            failed = self._attempts[message.message_id] <= self._failed_attempts
        say({"message": message_line(message) | {"failed": failed}})
        return ConsumeResult.FAILURE if failed else ConsumeResult.SUCCESS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--failed-attempts", type=int, default=0)
    options = parser.parse_args()
    listener = Listener(options.failed_attempts)
    consumer = LitePushConsumer(configuration(options.endpoint), options.group, options.topic, listener, tls_enable=TLS)
    consumer.startup()
    say({"ready": "lite push consumer"})
    serve(subscription_commands(consumer))
    consumer.shutdown()


if __name__ == "__main__":
    main()
