"""Attributes of lite topics, and the names of their queues."""

from __future__ import annotations

import pytest

from quarry_mq.kv import KeyValueEngine
from quarry_mq.protocol.lite_attributes import LiteModel
from quarry_mq.store.errors import Invalid
from quarry_mq.store.metadata import Group, GroupTable, Topic, TopicTable, TopicType, check_topic_name
from quarry_mq.store.metadata.lite import LiteGroup, light_queue_name, lite_topic_ttl_ms, parse_light_queue_name
from quarry_mq.store.metadata.topics import TOPICS_FAMILY, IllegalTopicName, encode_topic

MINUTE_MS = 60_000
BAD_EXPIRATIONS = ("-2", "43201", "99999999999999999999", "1.5", "30m", "٣٠", " 30", "9" * 4_000)
BAD_GROUP_VALUES = [
    ("lite.bind.topic", "a b", "must be the name of a topic"),
    ("lite.bind.topic", "SCHEDULE_TOPIC_XXXX", "reserved for the broker"),
    ("lite.sub.client.quota", "-2", "must be a number from -1 to 2147483647"),
    ("lite.sub.client.quota", "many", "a number from -1"),
    ("lite.sub.model", "shared", "Shared or Exclusive is allowed"),
    ("lite.sub.reset.offset.exclusive", "yes", "must be true or false"),
    ("lite.sub.reset.offset.unsubscribe", "1", "must be true or false"),
    ("lite.sub.wildcard", "or*ders", "a prefix of lite topic names"),
    ("lite.sub.client.max.event.cnt", "9", "a number from 10"),
]


def lite_topic(**attributes: str) -> Topic:
    return Topic("Parent", TopicType.LITE, 1, 1, attributes=attributes)


@pytest.mark.parametrize(
    ("minutes", "ttl_minutes"), [("-1", None), ("0", None), ("1", 15), ("15", 15), ("16", 16), ("43200", 43_200)]
)
def test_the_expiration_is_minutes_with_a_floor(minutes: str, ttl_minutes: int | None) -> None:
    """rmq#9800: thirty days at most, so that no arithmetic overflows."""
    expected = None if ttl_minutes is None else ttl_minutes * MINUTE_MS
    assert lite_topic_ttl_ms(lite_topic(**{"lite.topic.expiration": minutes})) == expected


def test_without_an_expiration_lite_topics_stay() -> None:
    assert lite_topic_ttl_ms(lite_topic()) is None


def test_other_types_have_no_lite_topics_to_expire() -> None:
    topic = Topic("Orders", TopicType.FIFO, 1, 1, attributes={"lite.topic.expiration": "30"})
    assert lite_topic_ttl_ms(topic) is None


@pytest.mark.parametrize("value", BAD_EXPIRATIONS)
def test_a_bad_expiration_is_refused_by_name_and_read_as_none(engine: KeyValueEngine, value: str) -> None:
    table, bad = TopicTable(engine), lite_topic(**{"lite.topic.expiration": value})
    with pytest.raises(Invalid, match=r"topic Parent: attribute lite\.topic\.expiration is .* from -1 to 43200"):
        table.create(bad)
    table.create(lite_topic())
    with pytest.raises(Invalid, match=r"lite\.topic\.expiration"):
        table.update(bad)

    batch = engine.batch()  # as another version, or another member, has left it
    batch.put(engine.family(TOPICS_FAMILY), b"Parent", encode_topic(bad))
    engine.write(batch)
    found = TopicTable(engine).get("Parent")
    assert found is not None
    assert found.attributes["lite.topic.expiration"] == value
    assert lite_topic_ttl_ms(found) is None


def test_an_error_does_not_repeat_a_long_value(engine: KeyValueEngine) -> None:
    with pytest.raises(Invalid) as refusal:
        TopicTable(engine).create(lite_topic(**{"lite.topic.expiration": "9" * 4_000}))
    assert len(str(refusal.value)) < 250


def test_a_group_is_a_lite_one_when_it_is_bound() -> None:
    assert LiteGroup.of(Group("readers")) is None
    assert LiteGroup.of(Group("readers", attributes={"lite.sub.model": "Exclusive"})) is None
    assert LiteGroup.of(Group("readers", attributes={"lite.bind.topic": "Parent"})) == LiteGroup(
        bind_topic="Parent",
        client_quota=2_000,
        model=LiteModel.SHARED,
        reset_offset_on_exclusive=False,
        reset_offset_on_unsubscribe=False,
        wildcard=None,
        client_events_max=400,
    )


def test_every_attribute_of_a_group_is_read(engine: KeyValueEngine) -> None:
    table = GroupTable(engine)
    attributes = {
        "lite.bind.topic": "Parent",
        "lite.sub.client.quota": "7",
        "lite.sub.model": "Exclusive",
        "lite.sub.reset.offset.exclusive": "true",
        "lite.sub.reset.offset.unsubscribe": "true",
        "lite.sub.wildcard": "orders-",
        "lite.sub.client.max.event.cnt": "10",
    }
    table.create(Group("readers", attributes=attributes))
    found = table.get("readers")
    assert found is not None
    assert LiteGroup.of(found) == LiteGroup(
        bind_topic="Parent",
        client_quota=7,
        model=LiteModel.EXCLUSIVE,
        reset_offset_on_exclusive=True,
        reset_offset_on_unsubscribe=True,
        wildcard="orders-",
        client_events_max=10,
    )


@pytest.mark.parametrize(
    ("value", "prefix"),
    [("true", ""), ("*", ""), ("orders-*", "orders-"), ("orders-", "orders-"), ("true*", "true"), ("false", None)],
)
def test_a_wildcard_is_how_names_begin(value: str, prefix: str | None) -> None:
    lite = LiteGroup.of(Group("readers", attributes={"lite.bind.topic": "Parent", "lite.sub.wildcard": value}))
    assert lite is not None
    assert lite.wildcard == prefix


def test_a_quota_of_minus_one_is_none() -> None:
    lite = LiteGroup.of(Group("readers", attributes={"lite.bind.topic": "Parent", "lite.sub.client.quota": "-1"}))
    assert lite is not None
    assert lite.client_quota is None


@pytest.mark.parametrize(("name", "value", "allowed"), BAD_GROUP_VALUES)
def test_a_bad_value_of_a_group_is_refused_by_name_and_read_as_unset(
    engine: KeyValueEngine, name: str, value: str, allowed: str
) -> None:
    table = GroupTable(engine)
    bad = Group("readers", attributes={"lite.bind.topic": "Parent", name: value})
    with pytest.raises(Invalid, match=f"group readers: attribute {name} is {value!r}".replace("*", r"\*")) as refusal:
        table.create(bad)
    assert allowed in str(refusal.value)
    table.add_missing([bad])  # from an older store
    found = table.get("readers")
    assert found is not None
    bound = {} if name == "lite.bind.topic" else {"lite.bind.topic": "Parent"}
    assert LiteGroup.of(found) == LiteGroup.of(Group("readers", attributes=bound))


@pytest.mark.parametrize(("parent", "lite"), [("Parent", "a"), ("%RETRY%x|y", "A-_9"), ("of$rocketmq", "b")])
def test_a_light_queues_name_leads_back(parent: str, lite: str) -> None:
    name = light_queue_name(parent, lite)
    assert name == f"%LMQ%${parent}${lite}"
    assert parse_light_queue_name(name) == (parent, lite)


@pytest.mark.parametrize(
    "name", ["", "Parent", "%LMQ%client", "%LMQ%$Parent", "%LMQ%$Parent$", "%LMQ%$$a", "%LMQ%$Parent$a b", "%LMQ%$P$é"]
)
def test_other_names_are_of_no_lite_topic(name: str) -> None:
    assert parse_light_queue_name(name) is None


def test_no_parent_that_clients_can_make_has_the_separator() -> None:
    with pytest.raises(IllegalTopicName):
        check_topic_name("Parent$a")
