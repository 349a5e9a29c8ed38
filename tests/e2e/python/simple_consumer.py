"""Simple consumer of `rocketmq-python-client`. Commands: receive, ack, change_invisible, close."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rocketmq import FilterExpression, SimpleConsumer

from tests.e2e.python.line_protocol import FILTER_TYPES, TLS, Line, configuration, describe, message_line, say, serve


class Deliveries:
    """The deliveries handed out so far, by number, so that a command can name one of several of a message."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._messages: list[Any] = []

    def commands(self) -> dict[str, Callable[[Line], Line]]:
        return {"receive": self.receive, "ack": self.ack, "change_invisible": self.change_invisible}

    def receive(self, command: Line) -> Line:
        lines = []
        for message in self._consumer.receive(command["count"], command["invisible_s"]):
            lines.append(message_line(message) | {"delivery": len(self._messages)})
            self._messages.append(message)
        return {"messages": lines}

    def ack(self, command: Line) -> Line:
        results = []
        for number in command["deliveries"]:
            try:
                self._consumer.ack(self._messages[number])
            except Exception as error:
                results.append({"delivery": number, "error": describe(error)})
            else:
                results.append({"delivery": number})
        return {"results": results}

    def change_invisible(self, command: Line) -> Line:
        message = self._messages[command["delivery"]]
        self._consumer.change_invisible_duration(message, command["invisible_s"])
        return {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--filter", default="*")
    parser.add_argument("--filter-type", choices=FILTER_TYPES, default="tag")
    parser.add_argument("--await-s", type=int, default=5)
    options = parser.parse_args()
    consumer = SimpleConsumer(
        configuration(options.endpoint),
        options.group,
        {topic: FilterExpression(options.filter, FILTER_TYPES[options.filter_type]) for topic in options.topic},
        await_duration=options.await_s,
        tls_enable=TLS,
    )
    consumer.startup()
    say({"ready": "simple consumer"})
    serve(Deliveries(consumer).commands())
    consumer.shutdown()


if __name__ == "__main__":
    main()
