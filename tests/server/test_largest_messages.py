"""Whatever is accepted fits a record, and so does everything that is ever made of it: nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from quarry_mq.protocol.clock import ManualClock
from quarry_mq.protocol.limits import DEFAULT_LIMITS, WireLimits
from quarry_mq.protocol.messages.property_names import RESERVED_PROPERTIES
from quarry_mq.protocol.names import DEAD_LETTER_PREFIX
from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from quarry_mq.protocol.proto.apache.rocketmq.v2 import service_pb2 as service
from quarry_mq.server.admin_port.messages.dead_letters import new_message
from quarry_mq.server.append.copies import fitted
from quarry_mq.server.delivery.dead_letters import _dead_letter, retry_of
from quarry_mq.server.delivery.retry_topics import retry_topic_name
from quarry_mq.server.pending.copies import carried_over, committed, delivered, given_up, half_of, recall, scheduled
from quarry_mq.server.settings.sections.limits import LimitsSection
from quarry_mq.server.wire.messages import to_message
from quarry_mq.server.wire.status import Refused
from quarry_mq.server.wire.validate import ADDED_LATER, ROOM_FOR_LATER, ROOM_FOR_SENDERS, check_send
from quarry_mq.store.fs import PosixDisk
from quarry_mq.store.message import Host, Message
from quarry_mq.store.metadata import Topic, TopicType
from quarry_mq.store.opening.open_store import OpenStore, open_store
from quarry_mq.store.record import StoredMessage, encode_properties
from quarry_mq.store.record.layout import CRC_PROPERTY_SIZE, PROPERTIES_LENGTH_MAXIMUM
from quarry_mq.store.settings import COPY_GROWTH_MAX, StoreSettings
from tests.server.largest import GROUP, KINDS, LARGEST_LIMITS, TOPIC, largest
from tests.wire.builders import NOW_MS

STORE_HOST = Host(bytes(16), 65_535)
PEER = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535"
DUE_MS = NOW_MS + 3_600_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStore]:
    settings = StoreSettings(root=tmp_path_factory.mktemp("largest"), segment_size=16 << 20)
    opened = open_store(settings, disk=PosixDisk(), clock=ManualClock(NOW_MS), report=lambda _: None)
    yield opened
    opened.close()


def accepted(message: definition.Message, limits: WireLimits) -> Message:
    request = service.SendMessageRequest(messages=[message])
    [checked] = check_send(service.SendMessageRequest.FromString(request.SerializeToString()), limits, NOW_MS).messages
    topic = message.topic.name
    return to_message(checked, topic=topic, queue_number=9_999, peer=PEER, store_host=STORE_HOST, now_ms=NOW_MS)


def recorded(store: OpenStore, message: Message) -> StoredMessage:
    """Stored as it is: all of it fits."""
    assert fitted(message.topic, message.properties)[1] == []
    [where] = store.messages.append([message])
    return store.messages.record_at(where.physical_offset)


def resent(record: StoredMessage, limits: WireLimits) -> Message:
    return accepted(new_message(record, Topic(TOPIC, TopicType.MIXED, 1, 1), 2**63, NOW_MS), limits)


def replayed(record: StoredMessage, limits: WireLimits) -> Message:
    """As `pipeline replay` sends it."""
    message = definition.Message(topic=definition.Resource(name=TOPIC), body=b"body")
    for name, value in record.properties.items():
        if name not in RESERVED_PROPERTIES:
            message.user_properties[name] = value
    message.user_properties["QUARRY_REPLAYED_FROM"] = f"{'t' * 255}/{2**31 - 1}/{2**63 - 1}"
    message.user_properties["QUARRY_REPLAYED_ID"] = "i" * 255
    message.system_properties.message_id = "i" * 34
    message.system_properties.keys.extend(record.properties["KEYS"].split(" "))
    message.system_properties.tag = record.properties["TAGS"]
    return accepted(message, limits)


LATER_STEPS: dict[str, Callable[[StoredMessage, WireLimits], Message]] = {
    "dead letter": lambda record, _: _dead_letter(DEAD_LETTER_PREFIX + GROUP, TOPIC, record, 2**31 - 1, STORE_HOST),
    "for its group": lambda record, _: retry_of(
        record, retry_topic_name(GROUP, TOPIC), group=GROUP, topic=TOPIC, store_host=STORE_HOST
    ),
    "once more": resent,
    "replayed": replayed,
}


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, LARGEST_LIMITS], ids=["default", "largest"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_largest_messages_go_through_every_later_step(store: OpenStore, kind: str, limits: WireLimits) -> None:
    """Each step behind each other, twice, since what one adds may stay when the next adds its own."""
    message = largest(kind, DUE_MS, limits)
    taken = accepted(message, limits)
    own = dict(message.user_properties)
    for record in pending_steps(store, taken, kind):
        frontier = [record]
        for _ in range(3):
            made = [recorded(store, step(each, limits)) for each in frontier for step in LATER_STEPS.values()]
            for each in made:
                kept = {name: each.properties.get(name) for name in own if own[name] and name != "INNER_MULTI_DISPATCH"}
                assert kept == {name: own[name] for name in kept}
                added = each.properties.keys() - record.properties.keys() - {"__CRC32#", "INNER_MULTI_QUEUE_OFFSET"}
                assert added <= ADDED_LATER.keys()
                assert all(len(each.properties[name]) <= ADDED_LATER[name] for name in added)
            frontier = made[:4]


def pending_steps(store: OpenStore, taken: Message, kind: str) -> Iterator[StoredMessage]:
    """The records that a message of the kind becomes before it is delivered, the last one being that."""
    if kind == "delay":
        waiting = recorded(store, scheduled(taken, DUE_MS))
        for _ in range(3):
            recorded(store, recall(waiting, due_ms=DUE_MS, store_host=STORE_HOST))
            waiting = recorded(store, carried_over(waiting, due_ms=DUE_MS, store_host=STORE_HOST))
        yield recorded(store, delivered(waiting, store_host=STORE_HOST, now_ms=DUE_MS))
    elif kind == "transaction":
        half = recorded(store, half_of(taken))
        yield recorded(store, given_up(half, store_host=STORE_HOST))
        yield recorded(store, committed(half, store_host=STORE_HOST))
    else:
        yield recorded(store, taken)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_largest(kind: str) -> None:
    for change in (
        lambda message: message.user_properties.update({"p0000": message.user_properties["p0000"] + "v"}),
        lambda message: message.user_properties.update({"one": ""}),
        lambda message: message.system_properties.keys.append(""),
        lambda message: setattr(message.system_properties, "message_id", "i" * 256),
        lambda message: setattr(message.system_properties, "born_host", "h" * 513),
        lambda message: setattr(message.system_properties, "trace_context", "c" * 2_049),
    ):
        message = largest(kind, DUE_MS)
        change(message)
        with pytest.raises(Refused):
            accepted(message, DEFAULT_LIMITS)


def test_the_room_that_is_kept_free_is_free(store: OpenStore) -> None:
    for kind in KINDS:
        taken = accepted(largest(kind, DUE_MS, LARGEST_LIMITS), LARGEST_LIMITS)
        assert len(encode_properties(taken.properties)) <= PROPERTIES_LENGTH_MAXIMUM - ROOM_FOR_LATER
    assert ROOM_FOR_LATER + 255 + 24 + CRC_PROPERTY_SIZE < COPY_GROWTH_MAX
    assert ROOM_FOR_SENDERS > 20_000, "what RocketMQ's clients may send by default, and more"


def test_settings_that_leave_no_room_are_refused() -> None:
    LimitsSection.model_validate({"properties_size": ROOM_FOR_SENDERS - 2 * 128 - 63})
    for values in (
        {"properties_size": ROOM_FOR_SENDERS - 2 * 128 - 62},
        {"properties_count": 20_000},
        {"message_group_size": 10_000},
    ):
        with pytest.raises(ValueError, match=f"a record has space for {ROOM_FOR_SENDERS}"):
            LimitsSection.model_validate(values)
