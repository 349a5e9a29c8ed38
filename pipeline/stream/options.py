"""Options, columns and errors of streams and sinks.

Options are parsed before a broker is called. Columns are the parts of a received message, named as in the table
`messages`. The errors end a query that talks to a broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, MapType, StringType, StructType

from quarry_mq.client.endpoint import Endpoint
from quarry_mq.client.queues import TIMEOUT_MS, QueueClient, Start
from quarry_mq.pipeline.source.options import InvalidOption, column_names, flag, known_options, whole_number
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.times import to_ms
from quarry_mq.store.errors import BrokerError

GROUP: Final = "quarry-spark"
SPLIT_MESSAGES: Final = 20_000
IN_FLIGHT_MAX: Final = 8
_CONNECTION: Final = ("endpoints", "timeoutMs", "tls", "tlsCa", "tlsCertificate", "tlsKey", "user", "secretFile")
SOURCE_OPTIONS: Final = (
    *("topic", "startingOffsets", "maxMessagesPerBatch", "failOnDataLoss", "splitMessages", "columns", "group"),
    *_CONNECTION,
)
SINK_OPTIONS: Final = ("topic", "writeId", "maxInFlight", *_CONNECTION)
_OF_SPARK: Final = ("checkpointLocation", "queryName")
"""Options that Spark passes to the sink of a stream, although they are meant for Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The address of a broker, and how to connect to it."""

    endpoint: str
    """`host:port` of the broker's messaging port."""
    timeout_ms: int = TIMEOUT_MS
    """Milliseconds for which calls are retried when the broker does not answer or is overloaded."""
    tls: bool = False
    ca: Path | None = None
    """Certificate authorities to trust (PEM), instead of gRPC's own list."""
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    """Name of the user that calls are signed as."""
    secret_file: Path | None = None
    """File with the user's secret, on every worker. Spark shows options, so the secret itself cannot be one."""

    def client(self) -> QueueClient:
        """Make a client, which must be closed. Raises OSError for a certificate, key or secret that cannot be read."""
        endpoint = Endpoint(
            self.endpoint,
            tls=self.tls,
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
            user=self.user,
            secret=None if self.secret_file is None else self.secret_file.read_text().strip(),
        )
        return QueueClient(endpoint, timeout_ms=self.timeout_ms, client_id=f"{GROUP}@{uuid.uuid4().hex}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of `spark.readStream.format("quarry").option(…)`."""

    connection: Connection
    topic: str
    start: Start | int = Start.LATEST
    """Begin of a new query; a number is a time in ms since 1970."""
    batch_max: int | None = None
    """Messages of one batch; None: all there are."""
    fail_on_loss: bool = True
    split_messages: int = SPLIT_MESSAGES
    """Messages that one task reads, at most."""
    columns: tuple[str, ...] | None = None
    group: str = GROUP
    """Consumer group that is named in calls. The broker keeps no state for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The parsed options of `df.write.format("quarry").option(…)` or `df.writeStream`."""

    connection: Connection
    topic: str | None = None
    """The topic that all rows are sent to; None: each row names its topic."""
    write_id: str | None = None
    """The base of the message ids; None: a new id for each write, or the id of the stream's query."""
    in_flight_max: int = IN_FLIGHT_MAX
    """Requests of one task that are under way at the same time."""


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a stream. Raises InvalidOption with the option's name."""
    given = known_options(options, SOURCE_OPTIONS)
    connection = _connection(given)
    if not given.get("topic"):
        raise InvalidOption("option 'topic': the name of a topic is needed")
    batch_max, columns = given.get("maxmessagesperbatch"), given.get("columns")
    return SourceOptions(
        connection=connection,
        topic=given["topic"],
        start=_start(given.get("startingoffsets", Start.LATEST.value)),
        batch_max=None if batch_max is None else whole_number("maxMessagesPerBatch", batch_max, minimum=1),
        fail_on_loss=flag("failOnDataLoss", given.get("failondataloss", "true")),
        split_messages=whole_number("splitMessages", given.get("splitmessages", str(SPLIT_MESSAGES)), minimum=1),
        columns=None if columns is None else column_names(columns),
        group=given.get("group") or GROUP,
    )


def sink_options(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """Parse the options of a sink. Raises InvalidOption with the option's name."""
    given = known_options(_without(options, _OF_SPARK) if is_stream else options, SINK_OPTIONS)
    if is_stream and "writeid" in given:
        raise InvalidOption("option 'writeId': a stream has the id of its query")
    return SinkOptions(
        connection=_connection(given),
        topic=given.get("topic") or None,
        write_id=given.get("writeid") or None,
        in_flight_max=whole_number("maxInFlight", given.get("maxinflight", str(IN_FLIGHT_MAX)), minimum=1),
    )


def _without(options: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    left_out = {name.lower() for name in names}
    return {name: text for name, text in options.items() if name.lower() not in left_out}


def _connection(given: Mapping[str, str]) -> Connection:
    endpoint = given.get("endpoints", "")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidOption(f"option 'endpoints': {endpoint!r} is not host:port of a broker")
    tls = flag("tls", given.get("tls", "false"))
    for name in ("tlsCa", "tlsCertificate", "tlsKey"):
        if given.get(name.lower()) and not tls:
            raise InvalidOption(f"option {name!r}: it needs tls=true")
    if bool(given.get("tlscertificate")) != bool(given.get("tlskey")):
        raise InvalidOption("option 'tlsKey': it belongs to tlsCertificate, and that to it")
    if bool(given.get("user")) != bool(given.get("secretfile")):
        raise InvalidOption("option 'secretFile': it belongs to user, and that to it")
    return Connection(
        endpoint=endpoint,
        timeout_ms=whole_number("timeoutMs", given.get("timeoutms", str(TIMEOUT_MS)), minimum=1),
        tls=tls,
        ca=_path(given.get("tlsca")),
        certificate=_path(given.get("tlscertificate")),
        key=_path(given.get("tlskey")),
        user=given.get("user") or None,
        secret_file=_path(given.get("secretfile")),
    )


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _start(text: str) -> Start | int:
    """Parse the start of a query. Dates are ISO 8601, in the driver's local time if they name no zone."""
    if text.isdecimal():
        return int(text)
    try:
        return Start(text.lower())
    except ValueError:
        pass
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidOption(
            f"option 'startingOffsets': {text!r} is neither earliest nor latest, ms since 1970 or a date"
        ) from None


class MessagesLost(BrokerError):
    """The broker no longer holds, or does not hold yet, messages that are to be read."""


class UnusableRow(BrokerError):
    """A row cannot become a message. The text names its column."""


class StreamColumn(NamedTuple):
    """The type of a column in Spark, and the function that takes its value from a received message."""

    type: DataType
    of: Callable[[definition.Message], Any]


def _encoding(message: definition.Message) -> str:
    return definition.Encoding.Name(message.system_properties.body_encoding)


COLUMNS: Final[dict[str, StreamColumn]] = {
    "topic": StreamColumn(StringType(), lambda message: message.topic.name),
    "queueId": StreamColumn(IntegerType(), lambda message: message.system_properties.queue_id),
    "queueOffset": StreamColumn(LongType(), lambda message: message.system_properties.queue_offset),
    "storeTimestamp": StreamColumn(LongType(), lambda message: to_ms(message.system_properties.store_timestamp)),
    "bornTimestamp": StreamColumn(LongType(), lambda message: to_ms(message.system_properties.born_timestamp)),
    "bornHost": StreamColumn(StringType(), lambda message: message.system_properties.born_host),
    "storeHost": StreamColumn(StringType(), lambda message: message.system_properties.store_host),
    "uniqKey": StreamColumn(StringType(), lambda message: message.system_properties.message_id),
    "tags": StreamColumn(StringType(), lambda message: message.system_properties.tag or None),
    "keys": StreamColumn(StringType(), lambda message: " ".join(message.system_properties.keys) or None),
    "messageGroup": StreamColumn(StringType(), lambda message: message.system_properties.message_group or None),
    "properties": StreamColumn(MapType(StringType(), StringType()), lambda message: dict(message.user_properties)),
    "bodyEncoding": StreamColumn(StringType(), _encoding),
    "body": StreamColumn(BinaryType(), lambda message: message.body),
}


def batch_of(messages: Sequence[definition.Message], schema: StructType) -> pa.RecordBatch:
    """Return the messages as rows of the schema, which holds some of the columns."""
    arrow = to_arrow_schema(schema, timezone="UTC")
    arrays = [
        pa.array([COLUMNS[field.name].of(message) for message in messages], field.type)
        if not pa.types.is_map(field.type)
        else pa.array([list(COLUMNS[field.name].of(message).items()) for message in messages], field.type)
        for field in arrow
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow)
