"""Limits on receives, acknowledgements and changes of the invisible time (docs/formats/protocol.md)."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from quarry_mq.protocol.limits import DEFAULT_LIMITS, ENTRIES_MAX, WireLimits
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.filters import TagFilter
from quarry_mq.server.wire.status import Refused, code_of
from quarry_mq.server.wire.validate import ReceiveTerms, check_ack, check_change, check_filter, check_receive
from quarry_mq.store.errors import BrokerError

STRICT = WireLimits(strict_polling=True)
HOUR_S = 3600


def request(**fields: object) -> service.ReceiveMessageRequest:
    """A push consumer's receive with some fields changed."""
    base = service.ReceiveMessageRequest(
        group=definition.Resource(name="workers"),
        message_queue=definition.MessageQueue(topic=definition.Resource(name="orders"), id=-1),
        batch_size=32,
        auto_renew=True,
        long_polling_timeout=Duration(seconds=20),
    )
    base.MergeFrom(service.ReceiveMessageRequest(**fields))  # type: ignore[arg-type]
    return base


def simple(**fields: object) -> service.ReceiveMessageRequest:
    """A simple consumer's receive."""
    received = request(**fields)
    received.auto_renew = False
    return received


def terms(
    received: service.ReceiveMessageRequest,
    *,
    limits: WireLimits = DEFAULT_LIMITS,
    remaining_s: float | None = 23.0,
    client_version: str = "5.2.1",
) -> ReceiveTerms:
    return check_receive(
        received, limits, remaining_s=remaining_s, request_timeout_ms=3_000, client_version=client_version
    )


def code(received: service.ReceiveMessageRequest) -> definition.Code:
    try:
        terms(received)
    except BrokerError as error:
        return code_of(error)
    return definition.OK


def test_a_push_consumers_receive() -> None:
    assert terms(request(attempt_id="attempt")) == ReceiveTerms(
        topic="orders",
        group="workers",
        filter=TagFilter.parse("*"),
        batch_size=32,
        invisible_ms=None,
        polling_ms=20_000,
        attempt_id="attempt",
    )


@pytest.mark.parametrize(
    ("wanted_s", "remaining_s", "expected_ms"),
    [
        (20, 23, 20_000),
        (60, 90, 20_000),  # the maximum
        (5, 8, 5_000),  # point 36
        (0, 23, 5_000),  # the minimum
        (0, 3, 2_800),  # Go's simple consumer: nearer than the minimum, still answered in time
        (20, 20, 19_800),
        (20, 0.1, 0),
        (20, -1, 0),
        (20, None, 20_000),
    ],
)
def test_polling_ends_before_the_clients_deadline(wanted_s: int, remaining_s: float | None, expected_ms: int) -> None:
    """Points 36 and 38, lenient."""
    received = request(long_polling_timeout=Duration(seconds=wanted_s))
    received.long_polling_timeout.seconds = wanted_s
    assert terms(received, remaining_s=remaining_s).polling_ms == expected_ms


def test_without_a_polling_time_half_the_request_timeout_is_left() -> None:
    received = request()
    received.ClearField("long_polling_timeout")
    assert terms(received, remaining_s=13).polling_ms == 11_500
    assert terms(received, remaining_s=None).polling_ms == 20_000


@pytest.mark.parametrize(
    ("client_version", "expected"),
    [
        ("5.2.1", definition.ILLEGAL_POLLING_TIME),
        ("5.0.3", definition.ILLEGAL_POLLING_TIME),
        ("5.0.2", definition.BAD_REQUEST),
        ("", definition.BAD_REQUEST),
    ],
)
def test_strict_polling_refuses_a_near_deadline(client_version: str, expected: definition.Code) -> None:
    """Point 38, strict."""
    with pytest.raises(Refused, match="The deadline time remaining is not enough for polling") as refused:
        terms(request(), limits=STRICT, remaining_s=1, client_version=client_version)
    assert refused.value.code == expected
    assert terms(request(), limits=STRICT, remaining_s=6).polling_ms == 5_800


def test_names_are_checked() -> None:
    assert code(request(group=definition.Resource(name="a b"))) == definition.ILLEGAL_CONSUMER_GROUP
    received = request()
    received.message_queue.topic.name = "a b"
    assert code(received) == definition.ILLEGAL_TOPIC
    assert code(service.ReceiveMessageRequest()) == definition.ILLEGAL_TOPIC


@pytest.mark.parametrize("invisible", [None, Duration(), Duration(nanos=999_999_999), Duration(seconds=-30)])
def test_an_invisible_time_is_not_too_short(invisible: Duration | None) -> None:
    """Point 39."""
    assert code(simple(invisible_duration=invisible)) == definition.ILLEGAL_INVISIBLE_TIME


def test_an_invisible_time_is_at_most_twelve_hours() -> None:
    """Point 39."""
    longest = Duration(seconds=12 * HOUR_S)
    assert terms(simple(invisible_duration=longest)).invisible_ms == 12 * HOUR_S * 1000
    assert code(simple(invisible_duration=Duration(seconds=12 * HOUR_S, nanos=1_000_000))) == (
        definition.ILLEGAL_INVISIBLE_TIME
    )


def test_the_broker_chooses_the_invisible_time_of_leased_messages() -> None:
    """Point 39: the C++ push consumer sends one nevertheless."""
    assert terms(request(invisible_duration=Duration(seconds=-1))).invisible_ms is None


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (definition.TAG, "", set()),
        (definition.TAG, "*", set()),
        (definition.TAG, " A || B ", {"A", "B"}),
        (definition.FILTER_TYPE_UNSPECIFIED, "A", {"A"}),
    ],
)
def test_tag_filters(kind: definition.FilterType, text: str, expected: set[str]) -> None:
    """Point 40."""
    wanted = check_filter(definition.FilterExpression(type=kind, expression=text))
    assert isinstance(wanted, TagFilter)
    assert wanted.tags == expected


def test_sql_filters() -> None:
    """Point 40."""
    wanted = check_filter(definition.FilterExpression(type=definition.SQL, expression="a > 5"))
    assert wanted.matches({"a": "6"})
    assert not wanted.matches({"a": "5"})


@pytest.mark.parametrize("text", ["", " ", "*", "a >", "'text'"])
def test_sql_that_is_none_is_refused(text: str) -> None:
    """Point 40."""
    expression = definition.FilterExpression(type=definition.SQL, expression=text)
    assert code(request(filter_expression=expression)) == definition.ILLEGAL_FILTER_EXPRESSION


@pytest.mark.parametrize(("asked", "given"), [(100, 32), (32, 32), (1, 1), (0, 1), (-5, 1)])
def test_batches_have_1_to_32_messages(asked: int, given: int) -> None:
    """Point 41."""
    received = request()
    received.batch_size = asked
    assert terms(received).batch_size == given


def ack(group: str = "workers", topic: str = "orders", entries: int = 1) -> service.AckMessageRequest:
    return service.AckMessageRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        entries=[service.AckMessageEntry(message_id=str(number)) for number in range(entries)],
    )


def test_acknowledgements() -> None:
    assert check_ack(ack()) == ("orders", "workers")
    for bad, expected in (
        (ack(topic=""), definition.ILLEGAL_TOPIC),
        (ack(group=""), definition.ILLEGAL_CONSUMER_GROUP),
        (ack(entries=0), definition.BAD_REQUEST),
        (ack(entries=ENTRIES_MAX + 1), definition.PAYLOAD_TOO_LARGE),
    ):
        with pytest.raises(BrokerError) as refused:
            check_ack(bad)
        assert code_of(refused.value) == expected


def change(
    invisible: Duration | None, group: str = "workers", topic: str = "orders"
) -> service.ChangeInvisibleDurationRequest:
    return service.ChangeInvisibleDurationRequest(
        group=definition.Resource(name=group),
        topic=definition.Resource(name=topic),
        receipt_handle="handle",
        invisible_duration=invisible,
    )


@pytest.mark.parametrize(
    ("invisible", "milliseconds"),
    [(None, 0), (Duration(), 0), (Duration(nanos=3_000_000), 3), (Duration(seconds=43_200), 43_200_000)],
)
def test_an_invisible_time_may_be_changed_to_nothing(invisible: Duration | None, milliseconds: int) -> None:
    """Point 44."""
    assert check_change(change(invisible), DEFAULT_LIMITS) == ("orders", "workers", "handle", milliseconds)


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (change(Duration(seconds=-1)), definition.ILLEGAL_INVISIBLE_TIME),
        (change(Duration(nanos=-1)), definition.ILLEGAL_INVISIBLE_TIME),
        (change(Duration(seconds=43_201)), definition.ILLEGAL_INVISIBLE_TIME),
        (change(None, topic=""), definition.ILLEGAL_TOPIC),
        (change(None, group=""), definition.ILLEGAL_CONSUMER_GROUP),
    ],
)
def test_refused_changes(bad: service.ChangeInvisibleDurationRequest, expected: definition.Code) -> None:
    """Point 44."""
    with pytest.raises(BrokerError) as refused:
        check_change(bad, DEFAULT_LIMITS)
    assert code_of(refused.value) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"polling_min_ms": 6, "polling_max_ms": 5},
        {"invisible_min_ms": 0},
        {"invisible_min_ms": 6, "invisible_max_ms": 5},
        {"batch_size_max": 0},
    ],
)
def test_limits_that_contradict_each_other_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        WireLimits(**fields)  # type: ignore[arg-type]
