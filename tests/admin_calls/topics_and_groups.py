"""`quarry.admin.v1.AdminService`: topics, groups, offsets, queues, expiry and backups."""

from __future__ import annotations

from typing import Any, Final

from grpc import StatusCode

from quarry_mq.store.metadata import TopicType
from tests.admin_calls.bench import GROUP, OWN_TOPIC, TOPIC, Bench
from tests.admin_calls.rows import Fields, Never, Refusal, Row, Table, bad_names, of_service

MISSING, BAD, EXISTS = StatusCode.NOT_FOUND, StatusCode.INVALID_ARGUMENT, StatusCode.ALREADY_EXISTS
GET_BROKER, CHANGE_BROKER = ["cluster:DefaultCluster get"], ["cluster:DefaultCluster update"]
OF_BROKER: Final = Never("it is about the broker")
NO_FIELDS: Final = Never("the request has no fields")
ONLY_SWITCHES: Final = Never("the request has nothing but switches")

NO_TOPIC: Final = Refusal({"name": "nothing"}, MISSING, "no topic nothing")
NO_GROUP: Final = Refusal({"name": "nobody"}, MISSING, "no group nobody")
BAD_TOPIC: Final = bad_names("name", BAD, "topic name")
BAD_GROUP: Final = bad_names("name", BAD, "group name")
BAD_ATTRIBUTES: Final = [
    Refusal({"attributes": {"": "x"}}, BAD, "attributes: a key is empty"),
    Refusal({"attributes": {"a": "x" * 100_000}}, BAD, "attributes: 100001 characters"),
]
BAD_PREFIX: Final = bad_names("prefix", BAD)[1:]
OF_THE_BROKER: Final = Refusal({"name": OWN_TOPIC}, StatusCode.FAILED_PRECONDITION, f"{OWN_TOPIC} is reserved for the")

TOPIC_SETTINGS: Final = [
    Refusal({"type": 99}, BAD, "type 99"),
    Refusal({"permission": 99}, BAD, "permission 99"),
    Refusal({"read_queues": 0}, BAD, "read_queues is 0"),
    Refusal({"write_queues": 0}, BAD, "write_queues is 0"),
    Refusal({"read_queues": 2**32 - 1}, BAD, "read_queues is 4294967295"),
    Refusal({"write_queues": 8193}, BAD, "write_queues is 8193"),
    Refusal({"attributes": {"lite.topic.expiration": "soon"}}, BAD, "attribute lite.topic.expiration is 'soon'"),
    *BAD_ATTRIBUTES,
]
GROUP_SETTINGS: Final = [
    Refusal({"max_attempts": 0}, BAD, "max_attempts is 0"),
    Refusal({"max_attempts": 2**31}, BAD, "max_attempts is 2147483648"),
    Refusal({"customized.delays_ms": []}, BAD, "backoff"),
    Refusal({"customized.delays_ms": [1] * 101}, BAD, "backoff"),
    Refusal({"customized.delays_ms": [2**64 - 1]}, BAD, "backoff"),
    *(
        Refusal({"exponential": {"initial_ms": 10, "maximum_ms": 20, "multiplier": bad}}, BAD, "backoff")
        for bad in (-1, 0, 1e300, "NaN", "Infinity")
    ),
    Refusal({"attributes": {"lite.sub.model": "Odd"}}, BAD, "attribute lite.sub.model is 'Odd'"),
    *BAD_ATTRIBUTES,
]


def new_topic(bench: Bench) -> Fields:
    return {"name": bench.topic()}


def new_group(bench: Bench) -> Fields:
    return {"name": bench.group()}


def unread_in_order(bench: Bench) -> Fields:
    name = bench.broker.topic(bench.name("topic"), TopicType.FIFO, 2)
    bench.send(name, message_group="g")
    return {"name": name, "write_queues": 3}


WOULD_BREAK_ORDER: Final = Refusal(unread_in_order, StatusCode.FAILED_PRECONDITION, "would lose their order: 1 that no")


def is_listed(*expected: str) -> Any:
    """Return a check that these are the names of all rows of the pages."""
    return lambda pages: [row.name for page in pages for row in (*page.ListFields()[0][1],)] == list(expected)


def backup(bench: Bench) -> Fields:
    return {"name": bench.backup()}


ROWS: Final[Table] = of_service(
    "quarry.admin.v1.AdminService",
    GetBroker=Row(
        holds=lambda broker: bool(broker.name == "quarry-here" and broker.log.appended_offset > 0),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    CreateTopic=Row(
        request={"name": "made", "type": "TOPIC_TYPE_FIFO", "read_queues": 3},
        prepared=lambda bench: {"name": bench.name("made")},
        holds=lambda topic: bool((topic.read_queues, topic.write_queues) == (3, 3)),
        missing=Never("it is made; one that is there already is refused as malformed"),
        malformed=[Refusal({"name": TOPIC}, EXISTS, f"topic {TOPIC} exists"), *BAD_TOPIC, *TOPIC_SETTINGS],
        needs=[f"topic:{TOPIC} create"],
        asked={"name": TOPIC},
    ),
    UpdateTopic=Row(
        request={"name": TOPIC},
        prepared=lambda bench: {"name": bench.topic(), "permission": "PERMISSION_NONE"},
        holds=lambda topic: bool(topic.permission == 4),
        missing=[NO_TOPIC],
        malformed=[*BAD_TOPIC, *TOPIC_SETTINGS, OF_THE_BROKER, WOULD_BREAK_ORDER],
        needs=[f"topic:{TOPIC} update"],
    ),
    DeleteTopic=Row(
        prepared=new_topic,
        holds=lambda answer: not answer.ListFields(),
        missing=[NO_TOPIC],
        malformed=[*BAD_TOPIC, OF_THE_BROKER],
        needs=["topic:gone delete"],
        asked={"name": "gone"},
    ),
    GetTopic=Row(
        request={"name": TOPIC},
        holds=lambda topic: bool(topic.name == TOPIC and topic.read_queues == 2),
        missing=[NO_TOPIC],
        malformed=BAD_TOPIC,
        needs=[f"topic:{TOPIC} get"],
    ),
    ListTopics=Row(
        request={"prefix": TOPIC},
        holds=is_listed(TOPIC),
        missing=Never("a list may be empty"),
        malformed=BAD_PREFIX,
        needs=["topic:* list"],
    ),
    CreateGroup=Row(
        request={"name": "made", "fifo": True},
        prepared=lambda bench: {"name": bench.name("made")},
        holds=lambda group: bool(group.fifo and group.max_attempts == 17),
        missing=Never("it is made; one that is there already is refused as malformed"),
        malformed=[Refusal({"name": GROUP}, EXISTS, f"group {GROUP} exists"), *BAD_GROUP, *GROUP_SETTINGS],
        needs=[f"group:{GROUP} create"],
        asked={"name": GROUP},
    ),
    UpdateGroup=Row(
        request={"name": GROUP},
        prepared=lambda bench: {"name": bench.group(), "max_attempts": 3},
        holds=lambda group: bool(group.max_attempts == 3),
        missing=[NO_GROUP],
        malformed=[*BAD_GROUP, *GROUP_SETTINGS],
        needs=[f"group:{GROUP} update"],
    ),
    DeleteGroup=Row(
        prepared=new_group,
        holds=lambda answer: not answer.ListFields(),
        missing=[NO_GROUP],
        malformed=BAD_GROUP,
        needs=["group:gone delete"],
        asked={"name": "gone"},
    ),
    GetGroup=Row(
        request={"name": GROUP},
        holds=lambda group: bool(group.name == GROUP and group.enabled),
        missing=[NO_GROUP],
        malformed=BAD_GROUP,
        needs=[f"group:{GROUP} get"],
    ),
    ListGroups=Row(
        request={"prefix": GROUP},
        holds=is_listed(GROUP),
        missing=Never("a list may be empty"),
        malformed=BAD_PREFIX,
        needs=["group:* list"],
    ),
    ResetOffset=Row(
        request={"group": GROUP, "topic": TOPIC, "earliest": {}, "dry_run": True},
        holds=lambda reset: [each.new_offset for each in reset.queues] == [0, 0],
        missing=[
            Refusal({"group": "nobody"}, MISSING, "no group nobody"),
            Refusal({"topic": "nothing"}, MISSING, "no topic nothing"),
            Refusal({"queue": 9}, BAD, f"topic {TOPIC} has no queue 9"),
        ],
        malformed=[
            *bad_names("group", BAD, "group name"),
            *bad_names("topic", BAD, "topic name"),
            Refusal({"earliest": None}, BAD, "position"),
            Refusal({"earliest": None, "offset": -1}, BAD, "offset: -1 is negative"),
            Refusal({"earliest": None, "stored_since_ms": -1}, BAD, "stored_since_ms: -1 is negative"),
            Refusal({"queue": 2**32 - 1}, BAD, "queue 4294967295"),
        ],
        needs=[f"group:{GROUP} update", f"topic:{TOPIC} update"],
    ),
    ListQueues=Row(
        request={"topic": TOPIC},
        holds=lambda answer: [each.queue for each in answer.queues] == [0, 1],
        missing=[Refusal({"topic": "nothing"}, MISSING, "no topic nothing")],
        malformed=bad_names("topic", BAD, "topic name"),
        needs=[f"topic:{TOPIC} get"],
    ),
    SummarizeQueues=Row(
        request={"largest": 1},
        holds=lambda summary: len(summary.largest) == 1 and bool(summary.kinds),
        missing=OF_BROKER,
        malformed=Never("a number above 1,000 stands for 1,000"),
        needs=GET_BROKER,
    ),
    ExpireSegments=Row(
        request={"dry_run": True},
        holds=lambda report: bool(report.unread_complete and not report.segments),
        missing=OF_BROKER,
        malformed=ONLY_SWITCHES,
        needs=CHANGE_BROKER,
    ),
    BeginBackup=Row(
        holds=lambda point: bool(point.name and point.log_end > 0),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=CHANGE_BROKER,
    ),
    RenewBackup=Row(
        prepared=backup,
        holds=lambda answer: not answer.ListFields(),
        missing=[Refusal({"name": "1"}, BAD, "backup point 1 is gone")],
        malformed=bad_names("name", BAD),
        needs=CHANGE_BROKER,
    ),
    EndBackup=Row(
        prepared=backup,
        holds=lambda answer: not answer.ListFields(),
        missing=[Refusal({"name": "1"}, BAD, "no backup point 1")],
        malformed=bad_names("name", BAD),
        needs=CHANGE_BROKER,
    ),
)
