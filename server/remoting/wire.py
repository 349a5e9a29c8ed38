"""The texts of requests and answers: custom headers, and the JSON of bodies.

All values of a header are text. A mistake in a value becomes an error that names the field.

RocketMQ writes maps whose keys are JSON objects, `{{"queueId":0,"topic":"T"}:VALUE}`, which is no JSON. Its tools read
nothing else there (`keyed`). Keys that are numbers are texts here: all clients read both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from quarry_mq.protocol.remoting.codes import ResponseCode
from quarry_mq.store.errors import Invalid
from quarry_mq.store.message import QueueId
from quarry_mq.store.metadata import READ_WRITE, Group, Permission, Topic, TopicType

INT32: Final = range(-(1 << 31), 1 << 31)
INT64: Final = range(-(1 << 63), 1 << 63)
DIGITS_MAX: Final = 20

BODY_SIZE_MAX: Final = 4 * 1024 * 1024
"""Bytes of a JSON body: a heartbeat of 1,000 subscriptions has some 200 KiB."""

Json = Any

_TRUE: Final = ("true", "1")


class RemotingRefused(Invalid):
    """A request breaks a rule of the protocol. `code` is the response code for it."""

    def __init__(self, code: ResponseCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def invalid(message: str) -> RemotingRefused:
    """Return the error for a parameter that is missing or wrong."""
    return RemotingRefused(ResponseCode.INVALID_PARAMETER, message)


def text_of(fields: Mapping[str, str], name: str) -> str:
    """Return a required text. Raises RemotingRefused (INVALID_PARAMETER)."""
    value = fields.get(name)
    if not value:
        raise invalid(f"the field {name} is missing")
    return value


def integer_of(fields: Mapping[str, str], name: str, default: int | None = None, *, within: range = INT64) -> int:
    """Return an integer; a field without a default is required. Raises RemotingRefused (INVALID_PARAMETER)."""
    value = fields.get(name)
    if value and len(value) < 10 and value.isascii() and value.isdigit():  # within any range, and nearly every number
        return int(value)
    if not value:
        if default is None:
            raise invalid(f"the field {name} is missing")
        return default
    digits = value.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX
    if not is_number or int(value) not in within:
        raise invalid(f"the field {name} is no integer of {32 if within is INT32 else 64} bits: {value[:DIGITS_MAX]!r}")
    return int(value)


def is_true(fields: Mapping[str, str], name: str) -> bool:
    """Return whether a field is `true`, in letters of any case, or `1`, as clients in C++ write it."""
    return fields.get(name, "").lower() in _TRUE


def json_object(body: bytes) -> dict[str, Json]:
    """Return the JSON object of a body. Raises RemotingRefused (INVALID_PARAMETER)."""
    if len(body) > BODY_SIZE_MAX:
        raise invalid(f"a body of {len(body)} bytes; {BODY_SIZE_MAX} are allowed")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("the body is no JSON object")
    return value


# RocketMQ's parser converts values: texts of digits to numbers, numbers to texts and to values of an enumeration. Its
# client for C++, and so the one for Python, count on that.


def member_text(members: Mapping[str, Json], name: str, default: str = "") -> str:
    """Return a text of a JSON object; null and missing are the default. Raises RemotingRefused."""
    value = members.get(name)
    return default if value is None else _as_text(value, name)


def _as_text(value: Json, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, int | float):
        raise invalid(f"{name} in the body is no text")
    return str(value)


def member_choice(members: Mapping[str, Json], name: str, choices: Sequence[str], default: str) -> str:
    """Return the name of one of an enumeration's `choices`, which may be given by its number. Raises RemotingRefused.

    Other names are returned as they are.
    """
    value = members.get(name)
    if type(value) is not int:
        return member_text(members, name, default)
    if not 0 <= value < len(choices):
        raise invalid(f"{name} in the body is {value}; 0 to {len(choices) - 1} are known")
    return choices[value]


def member_flag(members: Mapping[str, Json], name: str, *, default: bool) -> bool:
    """Return a flag of a JSON object; null and missing are the default."""
    value = members.get(name)
    return default if value is None else str(value).lower() in _TRUE


def member_integer(members: Mapping[str, Json], name: str, default: int = 0) -> int:
    """Return an integer of a JSON object; null and missing are the default. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return default
    if isinstance(value, str):
        return integer_of({name: value}, name, default)
    if type(value) is not int or value not in INT64:
        raise invalid(f"{name} in the body is no integer of 64 bits")
    return value


def member_objects(members: Mapping[str, Json], name: str) -> Iterable[dict[str, Json]]:
    """Return the objects of a list in a JSON object; null and missing are an empty list. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise invalid(f"{name} in the body is no list of objects")
    return value


def member_texts(members: Mapping[str, Json], name: str) -> Mapping[str, str]:
    """Return an object of texts in a JSON object; null and missing are an empty one. Raises RemotingRefused."""
    value = members.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"{name} in the body is no object of texts")
    return {key: _as_text(each, name) for key, each in value.items() if each is not None}


# -- answers

INHERIT: Final = 1
"""The permission bit of the topic that RocketMQ copies new topics from."""


def keyed(pairs: Iterable[tuple[Json, Json]]) -> bytes:
    """Return a map whose keys are objects."""
    return b"{" + b",".join([orjson.dumps(key) + b":" + orjson.dumps(value) for key, value in pairs]) + b"}"


def queue_of(broker: str, queue: QueueId) -> dict[str, Json]:
    """Return a queue as RocketMQ writes it."""
    return {"brokerName": broker, "queueId": queue.number, "topic": queue.topic}


def topic_config(topic: Topic) -> dict[str, Json]:
    """Return a topic's settings as RocketMQ writes them.

    A topic that takes messages of every type has no type there, as one that RocketMQ makes at its first use: the
    dashboard lists topics without a type, and none of the type MIXED.
    """
    return {
        "attributes": {} if topic.type is TopicType.MIXED else {"message.type": topic.type.name},
        "order": False,
        "perm": topic.permission.value,
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }


def group_config(group: Group) -> dict[str, Json]:
    """Return a group's settings as RocketMQ writes them."""
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": group.enabled,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": group.fifo,
        "consumeTimeoutMinute": 15,
        "groupName": group.name,
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": group.max_attempts - 1,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


class RoutedBroker(NamedTuple):
    """A routed broker is one that clients are sent to. `limit` is the most that they may do there."""

    name: str
    cluster: str
    address: str
    limit: Permission = READ_WRITE


def topic_route(topic: Topic, brokers: Sequence[RoutedBroker], *, extra_permission: int = 0) -> bytes:
    """Return the route of a topic that exists on each of the brokers."""
    return orjson.dumps(
        {
            "brokerDatas": [_broker(each) for each in brokers],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": each.name,
                    "perm": (topic.permission & each.limit).value | extra_permission,
                    "readQueueNums": topic.read_queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": topic.write_queues,
                }
                for each in brokers
            ],
        }
    )


def cluster_info(brokers: Sequence[RoutedBroker]) -> bytes:
    """Return all brokers, with their clusters and addresses."""
    clusters: dict[str, list[str]] = {}
    for each in brokers:
        clusters.setdefault(each.cluster, []).append(each.name)
    return orjson.dumps(
        {"brokerAddrTable": {each.name: _broker(each) for each in brokers}, "clusterAddrTable": clusters}
    )


def _broker(broker: RoutedBroker) -> dict[str, Json]:
    return {
        "brokerAddrs": {"0": broker.address},
        "brokerName": broker.name,
        "cluster": broker.cluster,
        "enableActingMaster": False,
    }


def broker_topic(name: str, queues: int) -> Topic:
    """Return a topic that every broker of RocketMQ has, as it is for clients before its first message."""
    return Topic(name, TopicType.MIXED, queues, queues)
