"""Producer of `rocketmq-python-client`. Commands: send, send_in_transaction, checked, recall, close."""

from __future__ import annotations

import argparse
import base64
import threading
from typing import Any, Final

from rocketmq import (
    Message,
    Producer,
    TransactionChecker,
    TransactionResolution,
)

from tests.e2e.python.line_protocol import TLS, Line, configuration, describe, say, serve, wall_ms


def build(fields: Line) -> Message:
    message = Message()
    message.topic = fields["topic"]
    message.body = base64.b64decode(fields["body"])
    if fields.get("tag") is not None:
        message.tag = fields["tag"]
    for key in fields.get("keys", []):
        message.keys = key  # the setter adds one key
    for name, value in fields.get("properties", {}).items():
        message.add_property(name, value)
    if fields.get("message_group") is not None:
        message.message_group = fields["message_group"]
    if fields.get("lite_topic") is not None:
        message.lite_topic = fields["lite_topic"]
    if fields.get("delivery_ms") is not None:
        message.delivery_timestamp = fields["delivery_ms"] // 1000  # the client counts in seconds
    if fields.get("priority") is not None:
        message.priority = fields["priority"]
    return message


RESOLUTIONS: Final = {
    "commit": TransactionResolution.COMMIT,
    "rollback": TransactionResolution.ROLLBACK,
    "unknown": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
}


class Checker(TransactionChecker):  # type: ignore[misc]  # the client has no types
    """Answers each question alike, and remembers it."""

    def __init__(self, answer: str) -> None:
        self._answer = RESOLUTIONS[answer]
        self._lock = threading.Lock()
        self._asked: list[str] = []

    def check(self, message: Message) -> Any:
        with self._lock:
            self._asked.append(message.message_id)
        return self._answer

    def asked(self) -> list[str]:
        with self._lock:
            return list(self._asked)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", action="append", default=[])
    parser.add_argument("--checker", choices=RESOLUTIONS)
    options = parser.parse_args()
    checker = None if options.checker is None else Checker(options.checker)
    producer = Producer(configuration(options.endpoint), options.topic, checker, tls_enable=TLS)
    producer.startup()
    say({"ready": "producer"})

    def send(command: Line) -> Line:
        receipts: list[Line] = []
        for fields in command["messages"]:
            started_ms = wall_ms()
            try:
                receipt = producer.send(build(fields))
            except Exception as error:
                receipts.append({"error": describe(error)})
                continue
            receipts.append(
                {
                    "message_id": receipt.message_id,
                    "offset": receipt.offset,
                    "recall_handle": receipt.recall_handle or None,
                    "at_ms": started_ms,
                }
            )
        return {"receipts": receipts}

    def send_in_transaction(command: Line) -> Line:
        started_ms = wall_ms()
        transaction = producer.begin_transaction()
        receipt = producer.send(build(command["message"]), transaction)
        if command["resolution"] == "commit":
            transaction.commit()
        elif command["resolution"] == "rollback":
            transaction.rollback()
        return {"message_id": receipt.message_id, "at_ms": started_ms}

    def checked(_: Line) -> Line:
        return {"message_ids": [] if checker is None else checker.asked()}

    def recall(command: Line) -> Line:
        producer.recall_message(command["topic"], command["recall_handle"])
        return {}

    serve({"send": send, "send_in_transaction": send_in_transaction, "checked": checked, "recall": recall})
    producer.shutdown()


if __name__ == "__main__":
    main()
