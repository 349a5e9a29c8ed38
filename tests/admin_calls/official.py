"""`apache.rocketmq.v2.Admin`: the status of an answer says how it went, with the code in parentheses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from quarry_mq.protocol.proto.apache.rocketmq.v2 import definition_pb2 as definition
from tests.admin_calls.bench import CLIENT_ID, GROUP, KEY, LITE_PARENT, LITE_TOPIC, MESSAGE_ID, TOPIC, Bench
from tests.admin_calls.rows import CONTROL, ENDLESS, Fields, Never, Refusal, Row, Table, bad_names, of_service

GET_TOPIC, UPDATE_TOPIC = f"topic:{TOPIC} get", f"topic:{TOPIC} update"
GET_GROUP, UPDATE_GROUP = f"group:{GROUP} get", f"group:{GROUP} update"
BAD: Final = definition.BAD_REQUEST

NO_TOPIC: Final = Refusal({"topic.name": "nothing"}, definition.TOPIC_NOT_FOUND, "topic: no topic nothing")
NO_TOPICS: Final = Refusal({"topics": [{"name": "nothing"}]}, definition.TOPIC_NOT_FOUND, "topics: no topic nothing")
NO_GROUP: Final = Refusal({"group.name": "nobody"}, definition.CONSUMER_GROUP_NOT_FOUND, "group: no group nobody")
NO_CONSUMER: Final = Refusal(
    {"group.name": "nobody"}, definition.NOT_FOUND, "client_id: group nobody has no such consumer"
)
NO_CLIENT: Final = Refusal({"client_id": "two"}, definition.NOT_FOUND, "client_id: group billing has no such consumer")
NEVER_READ: Final = Refusal(
    lambda bench: {"topics": [{"name": bench.topic()}]}, definition.OFFSET_NOT_FOUND, "topics: group billing has never"
)

BAD_TOPIC: Final = bad_names("topic.name", definition.ILLEGAL_TOPIC, "topic")
BAD_GROUP: Final = bad_names("group.name", definition.ILLEGAL_CONSUMER_GROUP, "group")
BAD_TOPICS: Final = [
    *(Refusal({"topics": [{"name": bad}]}, definition.ILLEGAL_TOPIC, "topic") for bad in ("", CONTROL, ENDLESS)),
    Refusal({"topics": [{"name": TOPIC}] * 5_000}, definition.PAYLOAD_TOO_LARGE, "topics"),
]
BAD_CLIENT: Final = [
    Refusal({"client_id": ""}, BAD, "client_id"),
    Refusal({"client_id": CONTROL}, definition.NOT_FOUND, "client_id"),
    Refusal({"client_id": ENDLESS}, definition.NOT_FOUND, "client_id"),
]

OF_TOPIC, OF_GROUP = {"topic.name": TOPIC}, {"group.name": GROUP}
OF_BOTH: Final = {**OF_GROUP, **OF_TOPIC}
OF_CLIENT: Final = {**OF_GROUP, "client_id": CLIENT_ID}


def ok(holds: Callable[[Any], bool] = bool) -> Callable[[Any], bool]:
    return lambda answer: answer.status.code == definition.OK and holds(answer)


def ids(*expected: str) -> Callable[[Any], bool]:
    return ok(lambda answer: [each.system_properties.message_id for each in answer.messages] == list(expected))


def forgettable(bench: Bench) -> Fields:
    """A subscription whose consumers are gone."""
    topic, group = bench.topic(), bench.group()
    bench.read(topic, group)
    return {"topic.name": topic, "group.name": group}


ROWS: Final[Table] = of_service(
    "apache.rocketmq.v2.Admin",
    ChangeLogLevel=Row(
        request={"level": "INFO"},
        holds=lambda answer: bool(answer.remark == "log.level is info now"),
        missing=Never("it is about the broker"),
        malformed=[Refusal({"level": 99}, grpc.StatusCode.INVALID_ARGUMENT, "level: 99")],
        needs=["cluster:DefaultCluster update"],
    ),
    DescribeTopicStatus=Row(
        request=OF_TOPIC,
        holds=ok(lambda answer: answer.topic_message_type == definition.NORMAL),
        missing=[NO_TOPIC],
        malformed=BAD_TOPIC,
        needs=[GET_TOPIC],
    ),
    ListSubscription=Row(
        request=OF_BOTH,
        holds=ok(lambda answer: [each.online for each in answer.subscription_info] == [True]),
        missing=[NO_TOPIC, NO_GROUP],
        malformed=[*BAD_TOPIC, *BAD_GROUP, Refusal({"topic.name": None, "group.name": None}, BAD, "topic, group")],
        needs=[GET_GROUP, GET_TOPIC],
    ),
    DescribeSubscription=Row(
        request=OF_BOTH,
        holds=ok(
            lambda answer: [each.client_info.client_id for each in answer.client_subscription_info] == [CLIENT_ID]
        ),
        missing=[NO_TOPIC, NO_GROUP],
        malformed=[*BAD_TOPIC, *BAD_GROUP],
        needs=["group:* list"],
        asked={"topic.name": None, "group.name": None},
    ),
    DeleteSubscription=Row(
        request=OF_BOTH,
        prepared=forgettable,
        holds=ok(),
        missing=[
            NO_TOPIC,
            NO_GROUP,
            Refusal(
                lambda bench: {"topic.name": bench.topic(), "group.name": bench.group()},
                definition.OFFSET_NOT_FOUND,
                "has never read topic",
            ),
        ],
        malformed=[
            *BAD_TOPIC,
            *BAD_GROUP,
            Refusal({}, definition.PRECONDITION_FAILED, "group billing has connected consumers"),
        ],
        needs=[UPDATE_GROUP, UPDATE_TOPIC],
    ),
    DescribeGroupAccumulation=Row(
        request={**OF_GROUP, "topics": [{"name": TOPIC}]},
        holds=ok(lambda answer: list(answer.topic_accumulation) == [TOPIC]),
        missing=[
            NO_GROUP,
            NO_TOPICS,
            NEVER_READ,
            Refusal(
                lambda bench: {"group.name": bench.group(), "topics": []},
                definition.OFFSET_NOT_FOUND,
                "has never read anything",
            ),
            Refusal(
                {"topics": [{"name": LITE_PARENT}], "lite_topic": "bob"}, definition.OFFSET_NOT_FOUND, "lite_topic"
            ),
        ],
        malformed=[*BAD_GROUP, *BAD_TOPICS, Refusal({"topics": [], "lite_topic": LITE_TOPIC}, BAD, "topics")],
        needs=[GET_GROUP],
    ),
    ListConsumerConnection=Row(
        request=OF_BOTH,
        holds=ok(lambda answer: [each.client_id for each in answer.client_info] == [CLIENT_ID]),
        missing=[NO_GROUP, NO_TOPIC],
        malformed=[
            *BAD_GROUP,
            *BAD_TOPIC,
            Refusal({"liteTopic": "a"}, definition.ILLEGAL_CONSUMER_GROUP, "group: billing is not bound to a topic"),
            *(Refusal({"liteTopic": bad}, definition.ILLEGAL_LITE_TOPIC, "liteTopic") for bad in ("", "a b", CONTROL)),
        ],
        needs=[GET_GROUP],
    ),
    ResetGroupOffset=Row(
        request={**OF_BOTH, "reset_timestamp": "2026-11-21T00:00:00Z"},
        prepared=lambda bench: {"topic.name": bench.topic(), "group.name": bench.group()},
        holds=ok(),
        missing=[NO_GROUP, NO_TOPIC],
        malformed=[
            *BAD_GROUP,
            *BAD_TOPIC,
            Refusal({"reset_timestamp": None}, BAD, "reset_timestamp"),
            Refusal({"reset_timestamp": "1969-12-31T23:59:59Z"}, BAD, "reset_timestamp: -1000 ms is before 1970"),
        ],
        needs=[UPDATE_GROUP, UPDATE_TOPIC],
        asked={"reset_timestamp": None},
    ),
    QueryMessage=Row(
        request={**OF_TOPIC, "message_key": KEY},
        holds=ids(MESSAGE_ID),
        missing=[NO_TOPIC, Refusal({"broker_name": "another"}, definition.NOT_FOUND, "broker_name")],
        malformed=[
            *BAD_TOPIC,
            Refusal({"message_key": ""}, BAD, "message_key"),
            Refusal({"message_key": None, "message_id": ""}, BAD, "message_id"),
            Refusal({"message_key": None, "lite_topic": ""}, definition.ILLEGAL_LITE_TOPIC, "lite_topic"),
            Refusal({"message_key": None, "subscription": "*"}, definition.UNSUPPORTED, "subscription"),
            Refusal({"message_key": None, "queue_id": -1}, BAD, "queue_id"),
            Refusal({"message_key": None, "queue_id": 9}, BAD, "queue_id"),
            Refusal({"begin_timestamp": "1969-12-31T00:00:00Z"}, BAD, "begin_timestamp"),
            Refusal({"begin_timestamp": "2200-01-01T00:00:00Z"}, BAD, "begin_timestamp"),
            Refusal({"page_num": -1}, BAD, "page_num"),
            Refusal({"page_num": 2**31 - 1}, BAD, "page_num"),
            Refusal({"page_num": 100, "message_key": None}, BAD, "page_num"),
            Refusal({"page_size": 0}, BAD, "page_size"),
            Refusal({"page_size": 257}, BAD, "page_size"),
            Refusal({"max_message_nums": -1}, BAD, "max_message_nums"),
            Refusal({"max_message_nums": 2_000_000_000}, BAD, "max_message_nums"),  # rmq#7948: it made a huge list
            Refusal({"scroll_id": "a"}, BAD, "scroll_id"),
            Refusal({"scroll_id": "1-1"}, BAD, "scroll_id"),
        ],
        needs=[GET_TOPIC],
    ),
    PrintThreadStackTrace=Row(
        request=OF_CLIENT,
        holds=ok(lambda answer: answer.thread_stack_trace == "main: waits"),
        missing=[NO_CONSUMER, NO_CLIENT],
        malformed=[*BAD_GROUP, *BAD_CLIENT],
        needs=[GET_GROUP],
    ),
    VerifyMessage=Row(
        request={**OF_CLIENT, **OF_TOPIC, "message_id": MESSAGE_ID},
        holds=ok(),
        missing=[
            NO_CONSUMER,
            NO_CLIENT,
            NO_TOPIC,
            Refusal({"message_id": "M9"}, definition.MESSAGE_NOT_FOUND, "message_id"),
        ],
        malformed=[
            *BAD_GROUP,
            *BAD_CLIENT,
            *BAD_TOPIC,
            Refusal({"topic.name": LITE_PARENT}, BAD, "topic: the client is not subscribed to"),
            Refusal({"message_id": ""}, definition.ILLEGAL_MESSAGE_ID, "message_id"),
            Refusal({"message_id": ENDLESS}, definition.MESSAGE_NOT_FOUND, "message_id"),
        ],
        needs=[UPDATE_GROUP, GET_TOPIC],
    ),
    AdminSendMessage=Row(
        request={**OF_TOPIC, "body": "eA==", "tag": "new"},
        holds=ok(lambda answer: len(answer.message_id) == 34),
        missing=[NO_TOPIC],
        malformed=[
            *BAD_TOPIC,
            Refusal({"body": ""}, definition.MESSAGE_BODY_EMPTY, "body"),
            Refusal({"tag": "a|b"}, definition.ILLEGAL_MESSAGE_TAG, "tag"),
            Refusal({"key": " "}, definition.ILLEGAL_MESSAGE_KEY, "key"),
            Refusal({"user_properties": {"TRACE_ON": "x"}}, definition.ILLEGAL_MESSAGE_PROPERTY_KEY, "TRACE_ON"),
            Refusal({"system_properties.message_group": "g"}, definition.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "FIFO"),
            Refusal({"key": CONTROL}, definition.ILLEGAL_MESSAGE_KEY, "key"),
            Refusal({"user_properties": {"": "x"}}, definition.ILLEGAL_MESSAGE_PROPERTY_KEY, "propert"),
            Refusal({"user_properties": {"a": ENDLESS}}, definition.MESSAGE_PROPERTIES_TOO_LARGE, "propert"),
            Refusal(
                {"user_properties": {"INNER_MULTI_DISPATCH": "a"}}, definition.ILLEGAL_MESSAGE_PROPERTY_KEY, "user"
            ),
            Refusal({"system_properties.message_type": "TRANSACTION"}, BAD, "system_properties"),
            Refusal({"system_properties.lite_topic": "a/b"}, definition.ILLEGAL_LITE_TOPIC, "lite"),
            Refusal({"system_properties.message_group": CONTROL}, definition.ILLEGAL_MESSAGE_GROUP, "message group"),
        ],
        needs=[f"topic:{TOPIC} pub"],
    ),
    GetConsumerRunningInfo=Row(
        request=OF_CLIENT,
        holds=ok(lambda answer: list(answer.consumer_running_info.subscriptions) == [TOPIC]),
        missing=[NO_GROUP, NO_CLIENT],
        malformed=[*BAD_GROUP, *BAD_CLIENT],
        needs=[GET_GROUP],
    ),
    GetTopicRoute=Row(
        request=OF_TOPIC,
        holds=ok(lambda answer: '"quarry-here"' in answer.topic_route_data),
        missing=[NO_TOPIC],
        malformed=BAD_TOPIC,
        needs=[GET_TOPIC],
    ),
    QueryTimeSpan=Row(
        request={**OF_GROUP, "topics": [{"name": TOPIC}]},
        holds=ok(lambda answer: [each.message_queue.id for each in answer.queue_time_span_list] == [0, 1]),
        missing=[NO_GROUP, NO_TOPICS, NEVER_READ],
        malformed=[*BAD_GROUP, *BAD_TOPICS],
        needs=[GET_GROUP],
    ),
    GetProxyRuntimeStats=Row(
        holds=ok(lambda answer: answer.proxy_name == "quarry-here"),
        missing=Never("it is about the broker"),
        malformed=Never("the request has no fields"),
        needs=["cluster:DefaultCluster get"],
    ),
)
