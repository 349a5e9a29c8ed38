"""Dead letters, lite topics, messages by key, index files, members, migration, settings and verification."""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from tests.admin_calls.bench import GROUP, KEY, LITE_PARENT, LITE_TOPIC, MEMBER_AWAY, MESSAGE_ID, TOPIC, Bench
from tests.admin_calls.rows import (
    CONTROL,
    ENDLESS,
    Elsewhere,
    Fields,
    Never,
    Refusal,
    Row,
    Table,
    bad_names,
    of_service,
)
from tests.admin_calls.topics_and_groups import (
    BAD,
    CHANGE_BROKER,
    GET_BROKER,
    MISSING,
    NO_FIELDS,
    OF_BROKER,
)

REFUSED: Final = StatusCode.FAILED_PRECONDITION

# -- dead letters

NO_LETTERS: Final = Refusal({"group": "nobody"}, MISSING, "group nobody has no dead letters")

DEAD_LETTERS: Final = of_service(
    "quarry.admin.v1.DeadLetterService",
    ListDeadLetters=Row(
        request={"group": GROUP, "from_offset": 0},
        holds=lambda answer: [(each.offset, each.topic) for each in answer.dead_letters] == [(0, TOPIC)],
        missing=[NO_LETTERS],
        malformed=[
            *bad_names("group", BAD),
            Refusal({"from_offset": -1}, BAD, "from_offset: -1 is negative"),
            Refusal({"count": -1}, BAD, "count -1"),
            Refusal({"count": 2**31 - 1}, BAD, "count 2147483647"),
        ],
        needs=[f"group:{GROUP} get"],
    ),
    ResendDeadLetters=Row(
        request={"group": GROUP, "offsets": [0], "dry_run": True},
        holds=lambda answer: bool(answer.resent == 1 and not answer.refused),
        missing=[NO_LETTERS, Refusal({"offsets": [9]}, BAD, "offset 9")],
        malformed=[*bad_names("group", BAD), Refusal({"offsets": [-1]}, BAD, "offsets: -1 is negative")],
        needs=[f"group:{GROUP} update"],
    ),
)

# -- lite topics

NO_PARENT: Final = Refusal({"topic": "nothing"}, MISSING, "no topic nothing")
NO_LITE: Final = Refusal({"lite_topic": "bob"}, MISSING, f"topic {LITE_PARENT} has no lite topic bob")
BAD_PARENT: Final = [
    *bad_names("topic", BAD, "topic name"),
    Refusal({"topic": TOPIC}, BAD, f"topic {TOPIC} is of type normal"),
]
OF_LITE: Final = {"topic": LITE_PARENT, "lite_topic": LITE_TOPIC}


def new_lite_topic(bench: Bench) -> Fields:
    name = bench.name("chat")
    bench.send(LITE_PARENT, lite_topic=name)
    return {"lite_topic": name}


LITE_TOPICS: Final = of_service(
    "quarry.admin.v1.LiteTopicService",
    ListLiteTopics=Row(
        request={"topic": LITE_PARENT, "prefix": "ali"},
        holds=lambda answer: [each.name for each in answer.lite_topics] == [LITE_TOPIC],
        missing=[NO_PARENT],
        malformed=[
            *BAD_PARENT,
            *bad_names("prefix", BAD)[1:],
            *bad_names("after", BAD)[1:],
            Refusal({"limit": -1}, BAD, "limit: -1 is negative"),
        ],
        needs=[f"topic:{LITE_PARENT} get"],
    ),
    GetLiteTopic=Row(
        request=OF_LITE,
        holds=lambda lite: bool((lite.name, lite.maximum_offset) == (LITE_TOPIC, 1)),
        missing=[NO_PARENT, NO_LITE],
        malformed=[*BAD_PARENT, *bad_names("lite_topic", BAD)],
        needs=[f"topic:{LITE_PARENT} get"],
    ),
    DeleteLiteTopic=Row(
        request={"topic": LITE_PARENT, "lite_topic": "gone"},
        prepared=new_lite_topic,
        holds=lambda answer: not answer.ListFields(),
        missing=[NO_PARENT, NO_LITE],
        malformed=[*BAD_PARENT, *bad_names("lite_topic", BAD)],
        needs=[f"topic:{LITE_PARENT} delete"],
    ),
    GetLiteTopicStatistics=Row(
        request={"topic": LITE_PARENT},
        holds=lambda statistics: bool(statistics.lite_topics_max == 1_000_000),
        missing=[NO_PARENT],
        malformed=BAD_PARENT,
        needs=[f"topic:{LITE_PARENT} get"],
    ),
)

# -- messages by their keys

MESSAGE_BY_KEY: Final = {"topic": TOPIC, "key": KEY}
ANY_KEY: Final = Never("a topic may have been deleted and its messages are still there: none is an answer")
BAD_QUERY: Final = [
    Refusal({"topic": ""}, BAD, "topic and key must be given"),
    Refusal({"topic": CONTROL}, BAD, "topic: 'a"),
    Refusal({"topic": ENDLESS}, BAD, "topic: 20000 characters"),
    Refusal({"key": ""}, BAD, "topic and key must be given"),
    Refusal({"limit": -1}, BAD, "limit -1"),
    Refusal({"limit": 1_001}, BAD, "limit 1001"),
    Refusal({"from_ms": -1}, BAD, "from_ms: -1 is negative"),
    Refusal({"from_ms": 2, "to_ms": 1}, BAD, "to_ms: 1 is earlier than from_ms"),
    Refusal({"to_ms": -1}, BAD, "to_ms: -1"),
]

QUERIES: Final = of_service(
    "quarry.admin.v1.QueryService",
    QueryMessages=Row(
        request=MESSAGE_BY_KEY,
        holds=lambda answer: len(answer.messages) == 1 and MESSAGE_ID.encode() in answer.messages[0].record,
        missing=ANY_KEY,
        malformed=BAD_QUERY,
        needs=[f"topic:{TOPIC} get"],
    ),
    TraceMessages=Row(
        request=MESSAGE_BY_KEY,
        holds=lambda answer: [each.topic for each in answer.messages[0].queues] == [TOPIC],
        missing=ANY_KEY,
        malformed=[*BAD_QUERY, Refusal({"limit": 101}, BAD, "limit 101")],
        needs=[f"topic:{TOPIC} get"],
    ),
    QueryIds=Row(
        request={"topic": TOPIC, "ids": [MESSAGE_ID, "another"]},
        holds=lambda answer: list(answer.ids) == [MESSAGE_ID],
        missing=ANY_KEY,
        malformed=[
            Refusal({"topic": ""}, BAD, "topic: must be given"),
            Refusal({"topic": CONTROL}, BAD, "topic: 'a"),
            Refusal({"topic": ENDLESS}, BAD, "topic: 20000 characters"),
            Refusal({"ids": [CONTROL]}, BAD, "ids: 'a"),
            Refusal({"ids": ["a"] * 1_001}, BAD, "ids: 1001 are more than 1000"),
            Refusal({"from_ms": -1}, BAD, "from_ms: -1 is negative"),
        ],
        needs=[f"topic:{TOPIC} get"],
    ),
)

QUERIES_BY_ID: Final = of_service(
    "quarry.admin.v1.QueryService",
    GetMessage=Row(
        request={"topic": TOPIC, "id": MESSAGE_ID},
        holds=lambda answer: bool(answer.same_id == 1 and answer.message.queues[0].topic == TOPIC),
        missing=[
            Refusal({"id": "01FF"}, MISSING, "has no message with this id"),
            Refusal({"id": None, "place.queue": 0, "place.offset": 99}, MISSING, "99"),
            Refusal({"topic": "nothing", "id": None, "place.offset": 0}, MISSING, "no topic nothing"),
        ],
        malformed=[
            Refusal({"id": None}, BAD, "id, place"),
            Refusal({"id": ""}, BAD, "id, place"),
            Refusal({"id": CONTROL}, BAD, "id: "),
            Refusal({"id": ENDLESS}, BAD, "id: 20000 characters"),
            *bad_names("topic", BAD)[1:],
            Refusal({"topic": "", "id": None, "place.offset": 0}, BAD, "topic: must be given"),
            Refusal({"id": None, "place.offset": -1}, BAD, "offset: -1"),
            Refusal({"id": None, "place.queue": -1}, BAD, "queue: -1"),
        ],
        needs=[f"topic:{TOPIC} get"],
    ),
)

INDEX: Final = of_service(
    "quarry.admin.v1.IndexService",
    ListIndexFiles=Row(
        holds=lambda answer: "tiered" in {each.kind for each in answer.files},
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    VerifyIndexFiles=Row(
        holds=lambda files: "tiered" in {each.kind for each in files} and not any(each.damage for each in files),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    CompactIndexFiles=Row(
        holds=lambda moved: bool(moved.count == 0), missing=OF_BROKER, malformed=NO_FIELDS, needs=CHANGE_BROKER
    ),
    UploadIndexFiles=Row(
        holds=lambda moved: bool(moved.count == 0), missing=OF_BROKER, malformed=NO_FIELDS, needs=CHANGE_BROKER
    ),
)

# -- members

REJOINS: Final = "tests/e2e/test_cluster.py::test_a_member_that_was_away_for_too_long_brings_nothing_back_and_rejoins"

NO_MEMBER: Final = Refusal({"name": "nobody"}, MISSING, "no member 'nobody'")
BAD_MEMBER: Final = bad_names("name", BAD)

MEMBERS: Final = of_service(
    "quarry.admin.v1.MembersService",
    ListMembers=Row(
        holds=lambda answer: [each.name for each in answer.members if each.is_self] == ["quarry-here"],
        missing=Never("a cluster has this member at least; outside of one there is a test of its own"),
        malformed=NO_FIELDS,
        needs=GET_BROKER,
        on_other_broker=True,
    ),
    DrainMember=Row(
        request={"name": MEMBER_AWAY},
        holds=lambda member: bool((member.name, member.state) == (MEMBER_AWAY, "draining")),
        missing=[NO_MEMBER],
        malformed=BAD_MEMBER,
        needs=CHANGE_BROKER,
        on_other_broker=True,
    ),
    ActivateMember=Row(
        request={"name": MEMBER_AWAY},
        holds=lambda member: bool((member.name, member.state) == (MEMBER_AWAY, "active")),
        missing=[NO_MEMBER],
        malformed=BAD_MEMBER,
        needs=CHANGE_BROKER,
        on_other_broker=True,
    ),
    RemoveMember=Row(
        request={"name": "gone"},
        prepared=lambda bench: {"name": bench.member()},
        holds=lambda answer: not answer.ListFields(),
        missing=[NO_MEMBER],
        malformed=[*BAD_MEMBER, Refusal({"name": "quarry-here"}, REFUSED, "quarry-here is reachable")],
        needs=CHANGE_BROKER,
        on_other_broker=True,
    ),
    Rejoin=Row(
        request={"name": MEMBER_AWAY, "dry_run": True},
        holds=Elsewhere(REJOINS),
        missing=[NO_MEMBER],
        malformed=BAD_MEMBER,
        needs=CHANGE_BROKER,
        on_other_broker=True,
    ),
)

# -- copies of the store

REPLICAS: Final = of_service(
    "quarry.admin.v1.ReplicaService",
    ListReplicas=Row(
        holds=lambda answer: not answer.replicas,
        missing=Never("a list may be empty"),
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
)

# -- migration, settings, verification

BAD_ASKED_BY: Final = bad_names("asked_by", BAD)[1:]


def in_files(bench: Bench) -> Fields:
    """No step of the migration is taken."""
    bench.migrate("RollBackMigration", to="file")
    return {}


def in_both(bench: Bench) -> Fields:
    bench.migrate("AdvanceMigration", to="double_write")
    return {}


MIGRATION: Final = of_service(
    "quarry.admin.v1.MigrationService",
    GetMigration=Row(
        holds=lambda migration: bool(migration.phase == "rocksdb" and migration.advance_refused),
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    AdvanceMigration=Row(
        prepared=in_files,
        holds=lambda answer: bool(answer.phase == "double_write"),
        missing=OF_BROKER,
        malformed=BAD_ASKED_BY,
        needs=CHANGE_BROKER,
        asked={"asked_by": CONTROL},
        on_other_broker=True,
    ),
    RollBackMigration=Row(
        prepared=in_both,
        holds=lambda answer: bool(answer.phase == "file"),
        missing=OF_BROKER,
        malformed=BAD_ASKED_BY,
        needs=CHANGE_BROKER,
        asked={"asked_by": CONTROL},
        on_other_broker=True,
    ),
)

LEVEL: Final = {"key": "log.level", "value": "info"}
NO_SETTING: Final = Refusal({"key": "log.colour"}, MISSING, "log.colour: no setting that can be changed")
BAD_KEY: Final = [
    Refusal({"key": ""}, BAD, "key"),
    Refusal({"key": CONTROL}, BAD, "key"),
    Refusal({"key": ENDLESS}, BAD, "key"),
]

SETTINGS: Final = of_service(
    "quarry.admin.v1.SettingsService",
    ListSettings=Row(
        holds=lambda answer: "log.level" in {each.key for each in answer.settings},
        missing=OF_BROKER,
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    GetSetting=Row(
        request={"key": "log.level"},
        holds=lambda setting: bool(setting.key == "log.level" and setting.value),
        missing=[NO_SETTING],
        malformed=BAD_KEY,
        needs=GET_BROKER,
    ),
    SetSetting=Row(
        request=LEVEL,
        holds=lambda setting: bool((setting.value, setting.source) == ("info", "live")),
        missing=[NO_SETTING],
        malformed=[
            *BAD_KEY,
            *(Refusal({"value": bad}, BAD, "log.level") for bad in ("", "loud", CONTROL, ENDLESS)),
            Refusal({"key": "limits.properties_count", "value": "-1"}, BAD, "limits.properties_count"),
        ],
        needs=CHANGE_BROKER,
    ),
    ResetSetting=Row(
        request={"key": "limits.properties_count"},
        holds=lambda setting: bool(setting.source == "default"),
        missing=[NO_SETTING],
        malformed=BAD_KEY,
        needs=CHANGE_BROKER,
    ),
)


def no_other(bench: Bench) -> Fields:
    bench.verification(is_over=True)
    return {}


def under_way(bench: Bench) -> Fields:
    bench.verification(is_over=True)
    return {"id": bench.verification(is_over=False)}


VERIFICATION: Final = of_service(
    "quarry.admin.v1.VerificationService",
    BeginVerification=Row(
        request={"asked_by": "tests", "busy_percent": 100},
        prepared=no_other,
        holds=lambda verification: bool((verification.asked_by, verification.state) == ("tests", "running")),
        missing=OF_BROKER,
        malformed=[
            *BAD_ASKED_BY,
            Refusal({"busy_percent": -1}, BAD, "busy_percent"),
            Refusal({"busy_percent": 101}, BAD, "busy_percent"),
        ],
        needs=CHANGE_BROKER,
        asked={"busy_percent": 101},
    ),
    GetVerification=Row(
        prepared=no_other,
        holds=lambda verification: bool(verification.ended_at_ms and verification.checks),
        missing=[Refusal({"id": 1}, BAD, "no verification 1")],
        malformed=[Refusal({"id": -1}, BAD, "no verification -1")],
        needs=GET_BROKER,
    ),
    ListVerifications=Row(
        prepared=no_other,
        holds=lambda answer: bool(answer.verifications),
        missing=Never("a list may be empty"),
        malformed=NO_FIELDS,
        needs=GET_BROKER,
    ),
    CancelVerification=Row(
        prepared=under_way,
        holds=lambda verification: bool(verification.id),
        missing=[Refusal({"id": 1}, BAD, "verification 1 is not running")],
        malformed=[Refusal({"id": -1}, BAD, "verification -1 is not running")],
        needs=CHANGE_BROKER,
    ),
)

ROWS: Final[Table] = {
    **DEAD_LETTERS,
    **LITE_TOPICS,
    **QUERIES,
    **QUERIES_BY_ID,
    **INDEX,
    **MEMBERS,
    **REPLICAS,
    **MIGRATION,
    **SETTINGS,
    **VERIFICATION,
}
