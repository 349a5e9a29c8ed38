"""Requests to send as the official Java client writes them, down to the frames."""

from __future__ import annotations

from random import Random
from typing import Final

from server._generated.apache.rocketmq.v2 import definition_pb2 as definition
from server._generated.apache.rocketmq.v2 import service_pb2 as service
from server.front.h2 import frames
from server.front.h2.frames import Flag, FrameType
from server.front.h2.grpc_messages import with_prefix
from server.front.h2.header_blocks import encode_fields

BODY_SIZE: Final = 1024
PRIORITY: Final = b"\0\0\0\0\x0f"
"""Netty says one with every request."""

CLIENT_FIELDS: Final = (
    (b":authority", b"broker"),
    (b":path", b"/apache.rocketmq.v2.MessagingService/SendMessage"),
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
    (b"user-agent", b"grpc-java-netty/1.50.0"),
    (b"x-mq-language", b"JAVA"),
    (b"x-mq-protocol", b"v2"),
    (b"x-mq-client-version", b"5.2.0"),
    (b"x-mq-date-time", b"20261123T194703Z"),
    (b"x-mq-request-id", b"541c2ba1-03ae-489e-a6ca-1664b7564cf2"),
    (b"x-mq-client-id", b"host@5630@0@iad5l80j2"),
    (b"x-mq-namespace", b""),
    (b"grpc-accept-encoding", b"gzip"),
    (b"grpc-timeout", b"9999969u"),
)


def requests(random: Random, count: int) -> list[bytes]:
    """So many requests of one message each."""
    made = []
    for number in range(count):
        message = definition.Message(topic=definition.Resource(name="bench-orders"), body=random.randbytes(BODY_SIZE))
        system = message.system_properties
        system.tag = "paid"
        system.keys.append(f"order-{number}")
        system.message_id = f"01{random.getrandbits(128):032X}"
        system.body_encoding = definition.IDENTITY
        system.message_type = definition.NORMAL
        system.born_timestamp.FromMilliseconds(1_700_000_000_000 + number)
        system.born_host = "host"
        system.queue_id = number % 8
        made.append(service.SendMessageRequest(messages=[message]).SerializeToString())
    return made


def h2_calls(bodies: list[bytes], first_stream_id: int) -> bytes:
    """The frames of a call for each of them."""
    written = []
    for number, body in enumerate(bodies):
        stream_id = first_stream_id + 2 * number
        fields = [
            (name, b"%036d" % stream_id if name == b"x-mq-request-id" else value) for name, value in CLIENT_FIELDS
        ]
        block = PRIORITY + b"\x20" + encode_fields(fields)  # a size update: the peer keeps no table
        written.append(frames.frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PRIORITY, stream_id, block))
        written.append(frames.frame(FrameType.DATA, Flag.END_STREAM, stream_id, with_prefix(body)))
    return b"".join(written)
