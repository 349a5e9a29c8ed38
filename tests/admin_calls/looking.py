"""Calls by which operators inspect a broker: messages, old and new, files, queues, pending messages, lite backlogs."""

from __future__ import annotations

from typing import Final

from quarry_mq.protocol.lite_attributes import BIND_TOPIC
from quarry_mq.store.metadata import Group
from tests.admin_calls.bench import GROUP, LITE_PARENT, LITE_TOPIC, MESSAGE_ID, TOPIC, Bench
from tests.admin_calls.operations import NO_PARENT
from tests.admin_calls.rows import CONTROL, ENDLESS, Fields, Never, Refusal, Row, Table, bad_names, of_service
from tests.admin_calls.topics_and_groups import BAD, GET_BROKER, MISSING, NO_FIELDS, OF_BROKER

NO_TOPIC: Final = Refusal({"topic": "nothing"}, MISSING, "no topic nothing")
BAD_CHOICE: Final = [
    *bad_names("topic", BAD),
    Refusal({"queue": 99}, BAD, "queue: topic orders has no queue 99"),
    Refusal({"queue": -1}, BAD, "queue: topic orders has no queue -1"),
    Refusal({"lite_topic": LITE_TOPIC}, BAD, "lite_topic: topic orders is of type normal"),
    Refusal({"topic": LITE_PARENT, "lite_topic": "a b"}, BAD, "lite_topic: 'a b'"),
    Refusal({"topic": LITE_PARENT, "lite_topic": ENDLESS}, BAD, "lite_topic: 20000 characters"),
    Refusal({"topic": LITE_PARENT, "lite_topic": CONTROL}, BAD, "lite_topic: "),
    Refusal({"topic": LITE_PARENT, "lite_topic": LITE_TOPIC, "queue": 0}, BAD, "queue: not allowed with lite_topic"),
    Refusal({"filter.expression": ENDLESS}, BAD, "filter.expression: tags have at most 16384"),
    Refusal({"filter.expression": "a >", "filter.is_sql": True}, BAD, "filter.expression: the filter expression"),
    Refusal({"filter.body_contains": "eHh4" * 100}, BAD, "filter.body_contains: 300 bytes"),
]

BROWSING: Final = of_service(
    "quarry.admin.v1.BrowsingService",
    BrowseMessages=Row(
        request={"topic": TOPIC, "is_ascending": True, "limit": 1},
        holds=lambda answer: len(answer.messages) == 1 and MESSAGE_ID.encode() in answer.messages[0].message.record,
        missing=[NO_TOPIC],
        malformed=[
            *BAD_CHOICE,
            Refusal({"offset": 0}, BAD, "offset: queue or lite_topic must be given, too"),
            Refusal({"queue": 0, "offset": -1}, BAD, "offset: -1 is negative"),
            Refusal({"stored_ms": -1}, BAD, "stored_ms: -1 is negative"),
            Refusal({"queue": 0, "is_ascending": False, "offset": -(2**63)}, BAD, "offset: "),
            Refusal({"cursor": ""}, BAD, "cursor: not a cursor of this call, or one of another version"),
            Refusal({"cursor": "AQ=="}, BAD, "cursor: it has 1 bytes, not 14"),
        ],
        needs=[f"topic:{TOPIC} get"],
    ),
    TailMessages=Row(
        request={"topic": TOPIC, "ends_after_ms": 20},
        holds=lambda answers: [len(each.messages) for each in answers] == [0],
        missing=[NO_TOPIC],
        malformed=BAD_CHOICE,
        needs=[f"topic:{TOPIC} get"],
    ),
)

STORAGE: Final = of_service(
    "quarry.admin.v1.StorageService",
    GetStorage=Row(
        holds=lambda storage: bool(storage.segment_count == 1 and storage.log_end and storage.disk_total),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    ListQueueSpans=Row(
        request={"topic": TOPIC, "limit": 1, "group": GROUP},
        holds=lambda answer: [each.queue for each in answer.queues] == [0] and bool(answer.has_more),
        missing=[NO_TOPIC],
        malformed=[*bad_names("topic", BAD), Refusal({"after": -1}, BAD, "after: -1 is negative")],
        needs=[f"topic:{TOPIC} get", f"group:{GROUP} get"],
    ),
    ListPending=Row(
        request={"limit": 2**32 - 1},
        holds=lambda answer: len(answer.due) == 4 and not answer.first_timers,
        missing=OF_BROKER,
        malformed=Never("any number is a limit, and there is no other field"),
        needs=GET_BROKER,
    ),
)


def lite_group(bench: Bench) -> Fields:
    name = bench.name("group")
    bench.broker.store.groups.create(Group(name, attributes={BIND_TOPIC: LITE_PARENT}))
    return {"group": name}


LITE_BACKLOG: Final = of_service(
    "quarry.admin.v1.LiteTopicService",
    ListLiteBacklog=Row(
        request={"topic": LITE_PARENT, "group": GROUP},
        prepared=lite_group,
        holds=lambda answer: bool(answer.is_complete and not answer.lite_topics),
        missing=[NO_PARENT, Refusal({"group": "nobody"}, MISSING, "no group nobody")],
        malformed=[
            *bad_names("topic", BAD),
            *bad_names("group", BAD),
            Refusal({"topic": TOPIC}, BAD, f"topic {TOPIC} is of type normal"),
            Refusal({}, BAD, f"group: group {GROUP} reads no lite topics of topic {LITE_PARENT}"),
        ],
        needs=[f"topic:{LITE_PARENT} get", f"group:{GROUP} get"],
    ),
)

ROWS: Final[Table] = {**BROWSING, **STORAGE, **LITE_BACKLOG}
