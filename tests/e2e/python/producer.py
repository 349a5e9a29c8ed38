"""Producer of `rocketmq-python-client`. Commands: send, close."""

from __future__ import annotations

import argparse
import base64

from rocketmq import ClientConfiguration, Credentials, Message, Producer  # type: ignore[import-untyped]

from tests.e2e.python.line_protocol import TLS, Line, describe, say, serve, wall_ms


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
    return message


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--topic", action="append", default=[])
    options = parser.parse_args()
    producer = Producer(ClientConfiguration(options.endpoint, Credentials()), options.topic, tls_enable=TLS)
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
            receipts.append({"message_id": receipt.message_id, "offset": receipt.offset, "at_ms": started_ms})
        return {"receipts": receipts}

    serve({"send": send})
    producer.shutdown()


if __name__ == "__main__":
    main()
