"""Parses the options of the source that reads live brokers.

Their names and rules are those of Spark's source for Kafka.

docs/pipeline.md compares both sources, option by option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final

from quarry_mq.client.queues import Start
from quarry_mq.client.remoting_queues import TOOLS_GROUP
from quarry_mq.pipeline.kafka_columns import KAFKA
from quarry_mq.pipeline.source.options import InvalidOption, column_names, flag, known_options, nearest, whole_number
from quarry_mq.pipeline.source.times import TimeForm
from quarry_mq.pipeline.stream.offsets import by_queue_of
from quarry_mq.pipeline.stream.options import (
    CONNECTION_OPTIONS,
    GROUP,
    NAME_SERVERS,
    Connection,
    address_of,
    connection_of,
    duration_ms,
    with_our_names,
)

RECORDS_PER_PARTITION: Final = 20_000
TRIGGER_DELAY_MS: Final = 15 * 60_000
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_OF_STREAMS: Final = (
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger"),
    "commitOffsets",
)
_OF_BATCHES: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
SOURCE_OPTIONS: Final = (
    *_SUBSCRIPTIONS,
    *("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"),
    *_OF_BATCHES,
    *_OF_STREAMS,
    *("minPartitions", "maxRecordsPerPartition", "failOnDataLoss", "columns", "includeHeaders", "timestamps"),
    *("group", "commitOffsets", "adminEndpoint", NAME_SERVERS, *CONNECTION_OPTIONS),
)
_OTHER_NAMES: Final = {
    "topic": "subscribe",
    "maxmessagesperbatch": "maxOffsetsPerTrigger",
    "splitmessages": "maxRecordsPerPartition",
    "namesrvaddr": NAME_SERVERS,
    "nameserveraddress": NAME_SERVERS,
    "rocketmq.name-server": NAME_SERVERS,
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "kafkaconsumer.polltimeoutms": "timeoutMs",
    "fetchoffset.numretries": "timeoutMs",
    "fetchoffset.retryintervalms": "timeoutMs",
    "kafka.security.protocol": "tls",
}
"""Options of Spark's source for Kafka and of clients of RocketMQ, and names from before. Each has the option that does
the same here.
"""

EARLIEST: Final = -2
LATEST: Final = -1
_PLACES: Final = {EARLIEST: Start.EARLIEST, LATEST: Start.LATEST}


class Use(Enum):
    """The query that the options are for."""

    STREAM = "stream"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Positions:
    """The begin or end of a query in each queue: a place or time for all queues, or a number for each."""

    option: str
    """The option that says so, for errors."""
    everywhere: Start | int | None = None
    """The begin or end of all queues, or a time in ms since 1970."""
    by_queue: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Maps topic and name of the queue to an offset, EARLIEST or LATEST; or to a time."""
    is_time: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of `spark.readStream.format("quarry").option(…)` and `spark.read`."""

    connection: Connection
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    """Topics whose whole name matches are read, including those that are created later."""
    assigned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the only queues that are read, by topic."""
    admin_endpoint: str | None = None
    """`host:port` of the admin port, which lists topics."""
    start: Positions
    end: Positions = Positions("endingOffsets", Start.LATEST)
    is_time_required: bool = True
    """Tells that a queue without messages since the time of its start is an error. Otherwise it begins at its end."""
    batch_max: int | None = None
    """Messages of one batch; None: all there are."""
    batch_min: int = 0
    """Messages that a batch waits for."""
    delay_max_ms: int = TRIGGER_DELAY_MS
    """Milliseconds that a batch waits for `batch_min` messages at most."""
    batch_bytes_max: int | None = None
    partitions_min: int = 1
    records_max: int = RECORDS_PER_PARTITION
    """Messages that one task reads, at most."""
    fail_on_loss: bool = True
    columns: tuple[str, ...] | None = None
    include_headers: bool = True
    timestamps: TimeForm = TimeForm.TIMESTAMP
    group: str = GROUP
    """Consumer group that is named in calls. The broker keeps no state for it, unless `commits_offsets`."""
    commits_offsets: bool = False
    """Tells that the stream stores how far it has read as the group's offsets. It never reads them."""

    @property
    def subscription(self) -> str:
        """The option that says what is read."""
        return "assign" if self.assigned else "subscribe" if self.pattern is None else "subscribePattern"


def source_options(options: Mapping[str, str], use: Use | None = None) -> SourceOptions:
    """Parse the options of a query; None: of either kind. Raises InvalidOption with the option's name."""
    options = with_our_names(options, is_source=True)
    _check_foreign(options)
    given = known_options(options, SOURCE_OPTIONS)
    for names, of, other in ((_OF_BATCHES, Use.BATCH, "spark.read"), (_OF_STREAMS, Use.STREAM, "spark.readStream")):
        for name in names:
            if name.lower() in given and use not in (None, of):
                raise InvalidOption(f"option {name!r}: only {other} has it")
    admin = given.get("adminendpoint")
    topics, pattern, assigned = _subscription(given)
    connection = connection_of(given)
    if admin is not None and connection.name_servers:
        raise InvalidOption("option 'adminEndpoint': name servers list the topics themselves")
    if pattern is not None and admin is None and not connection.name_servers:
        raise InvalidOption("option 'adminEndpoint': subscribePattern needs it: the admin port lists the topics")
    start = _positions(given, "starting", use)
    columns, limit = given.get("columns"), given.get("maxoffsetspertrigger")
    bytes_max = given.get("maxbytespertrigger")
    batch_min = whole_number("minOffsetsPerTrigger", given.get("minoffsetspertrigger", "0"), minimum=0)
    batch_max = None if limit is None else whole_number("maxOffsetsPerTrigger", limit, minimum=1)
    if batch_max is not None and batch_min > batch_max:
        raise InvalidOption(f"option 'minOffsetsPerTrigger': {batch_min} is more than maxOffsetsPerTrigger")
    if "includeheaders" in given and columns != KAFKA:
        raise InvalidOption("option 'includeHeaders': it belongs to columns=kafka; see the column 'properties'")
    commits_offsets = flag("commitOffsets", given.get("commitoffsets", "false"))
    if commits_offsets and not given.get("group"):
        raise InvalidOption("option 'commitOffsets': it needs the option 'group', a group that no consumer uses")
    if commits_offsets and connection.name_servers:
        raise InvalidOption("option 'commitOffsets': it needs 'endpoints', and does not work with 'nameServers'")
    records = given.get("maxrecordsperpartition", str(RECORDS_PER_PARTITION))
    return SourceOptions(
        connection=connection,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        admin_endpoint=None if admin is None else address_of("adminEndpoint", admin),
        start=start,
        end=_positions(given, "ending", use),
        is_time_required=_is_time_required(given.get("startingoffsetsbytimestampstrategy", "error")),
        batch_max=batch_max,
        batch_min=batch_min,
        delay_max_ms=duration_ms("maxTriggerDelay", given.get("maxtriggerdelay", f"{TRIGGER_DELAY_MS}ms")),
        batch_bytes_max=None if bytes_max is None else whole_number("maxBytesPerTrigger", bytes_max, minimum=1),
        partitions_min=whole_number("minPartitions", given.get("minpartitions", "1"), minimum=1),
        records_max=whole_number("maxRecordsPerPartition", records, minimum=1),
        fail_on_loss=flag("failOnDataLoss", given.get("failondataloss", "true")),
        columns=None if columns is None else column_names(columns),
        include_headers=flag("includeHeaders", given.get("includeheaders", "true")),
        timestamps=_time_form(given.get("timestamps", TimeForm.TIMESTAMP.value)),
        group=given.get("group") or (TOOLS_GROUP if connection.name_servers else GROUP),
        commits_offsets=commits_offsets,
    )


def _check_foreign(options: Mapping[str, str]) -> None:
    for name in sorted(options):
        ours = _OTHER_NAMES.get(name.lower())
        if ours is not None:
            raise InvalidOption(f"option {name!r}: this source has {ours!r} for it")
        if name.lower().startswith("kafka."):
            raise InvalidOption(f"option {name!r}: it is for a client of Kafka, which this source does not have")


def _subscription(
    given: Mapping[str, str],
) -> tuple[tuple[str, ...], re.Pattern[str] | None, dict[str, tuple[str, ...]]]:
    """Return the topics, the pattern and the queues, of which one is given."""
    names = [name for name in _SUBSCRIPTIONS if given.get(name.lower())]
    if len(names) != 1:
        raise InvalidOption(
            f"option {names[1]!r}: {names[0]!r} is given, too; they exclude each other"
            if names
            else f"option 'subscribe': one of {', '.join(_SUBSCRIPTIONS)} is needed"
        )
    [name] = names
    text = given[name.lower()]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(each.strip() for each in text.split(",")))
        if not all(topics):
            raise InvalidOption(f"option 'subscribe': {text!r} holds an empty name")
        return topics, None, {}
    if name == "subscribePattern":
        try:
            return (), re.compile(text), {}
        except re.error as error:
            raise InvalidOption(f"option 'subscribePattern': {text!r} is no regular expression: {error}") from None
    return (), None, _assigned(text)


def _assigned(text: str) -> dict[str, tuple[str, ...]]:
    shape = f"option 'assign': {text!r} is not JSON such as {{\"orders\": [0, 1]}}"
    try:
        parsed = json.loads(text)
    except ValueError:
        raise InvalidOption(shape) from None
    if not isinstance(parsed, dict) or not parsed:
        raise InvalidOption(shape)
    for queues in parsed.values():
        if not isinstance(queues, list) or not queues or not all(type(each) in (int, str) for each in queues):
            raise InvalidOption(shape)
    return {topic: tuple(dict.fromkeys(map(str, queues))) for topic, queues in parsed.items()}


def _positions(given: Mapping[str, str], prefix: str, use: Use | None) -> Positions:
    """Return where queues begin or end. As for Kafka, a time for all goes before times by queue and before offsets."""
    time = f"{prefix}Timestamp"
    if time.lower() in given:
        return Positions(time, _time_ms(time, given[time.lower()]), is_time=True)
    times = f"{prefix}OffsetsByTimestamp"
    if times.lower() in given:
        return Positions(times, by_queue=by_queue_of(times, given[times.lower()], minimum=0), is_time=True)
    option, is_start = f"{prefix}Offsets", prefix == "starting"
    default = Start.EARLIEST if is_start and use is Use.BATCH else Start.LATEST
    text = given.get(option.lower(), default.value)
    # a batch that begins at the end, or ends at the begin, has no rows
    refused = None if use is not Use.BATCH else LATEST if is_start else EARLIEST
    if text.lower() in [place.value for place in Start]:
        everywhere = Start(text.lower())
        if refused is not None and everywhere is _PLACES[refused]:
            raise InvalidOption(f"option {option!r}: {text!r} gives a batch without rows")
        return Positions(option, everywhere)
    if not text.lstrip().startswith("{"):
        hint = f"; a time is {prefix}Timestamp" if _is_time(text) else nearest(text, [each.value for each in Start])
        raise InvalidOption(f"option {option!r}: {text!r} is neither earliest, latest nor JSON{hint}")
    by_queue = by_queue_of(option, text, minimum=EARLIEST)
    for topic, offsets in by_queue.items():
        if refused in offsets.values():
            raise InvalidOption(f"option {option!r}: topic {topic}: {refused} gives a batch without rows")
    return Positions(option, by_queue=by_queue)


def place_of(number: int) -> Start | int:
    """Return what a number in the JSON of offsets stands for."""
    return _PLACES.get(number, number)


def _time_ms(option: str, text: str) -> int:
    """Parse ms since 1970, or a date in ISO 8601, in the driver's local time if the date names no zone."""
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise InvalidOption(f"option {option!r}: {text!r} is neither ms since 1970 nor a date") from None


def _is_time(text: str) -> bool:
    try:
        _time_ms("", text)
    except InvalidOption:
        return False
    return True


def _is_time_required(text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise InvalidOption(
            f"option 'startingOffsetsByTimestampStrategy': {text!r} is neither error nor latest"
            f"{nearest(text, ('error', 'latest'))}"
        )
    return text.lower() == "error"


def _time_form(text: str) -> TimeForm:
    try:
        return TimeForm(text.lower())
    except ValueError:
        raise InvalidOption(f"option 'timestamps': {text!r} is none of {', '.join(TimeForm)}") from None
