"""A stream as Spark drives it, without Spark."""

from __future__ import annotations

import uuid
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from quarry_mq.pipeline.stream.batch import BatchReader
from quarry_mq.pipeline.stream.columns import live_schema
from quarry_mq.pipeline.stream.options import Connection
from quarry_mq.pipeline.stream.reader import StreamReader
from quarry_mq.pipeline.stream.source_options import Use, source_options
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.e2e.broker import Broker

Row = dict[str, Any]
Offsets = dict[str, Any]


def stream(broker: Broker | None, topic: str | None = "orders", **options: object) -> StreamReader:
    """Options are spelled as Spark users spell them; None leaves one out. Without a broker they name another."""
    told = {"endpoints": broker and broker.endpoint, "subscribe": topic, "startingOffsets": "earliest", **options}
    checked = source_options({name: str(value) for name, value in told.items() if value is not None}, Use.STREAM)
    return StreamReader(checked, live_schema(checked))


def batch(broker: Broker | None, topic: str | None = "orders", **options: object) -> list[Row]:
    """The rows of `spark.read`; options as for `stream`."""
    told = {"endpoints": broker and broker.endpoint, "subscribe": topic, **options}
    checked = source_options({name: str(value) for name, value in told.items() if value is not None}, Use.BATCH)
    reader = BatchReader(checked, live_schema(checked))
    return [row for part in reader.partitions() for some in reader.read(part) for row in some.to_pylist()]


def rows_between(reader: StreamReader, start: Offsets, end: Offsets) -> list[Row]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]


def latest(reader: StreamReader, start: Offsets, limit: ReadLimit | None = None) -> Offsets:
    """Where the stream ends at this very moment."""
    reader._look_again_s = float("-inf")
    return reader.latestOffset(start, limit or ReadAllAvailable())


def send(broker: Broker, *bodies: str, topic: str = "orders", size: int = 0) -> None:
    """One request for each, so that they spread over the queues. `size`: filled up to so many bytes."""
    client = Connection(endpoint=broker.endpoint).client()
    try:
        for body in bodies:
            message = definition.Message(body=body.encode().ljust(size))
            message.topic.name = topic
            message.system_properties.message_id = uuid.uuid4().hex
            message.system_properties.body_encoding = definition.IDENTITY
            client.send([message])
    finally:
        client.close()
