"""`quarry.admin.v1.JobService` and `ClientService`."""

from __future__ import annotations

from typing import Final

from grpc import StatusCode

from tests.admin_calls.bench import CLIENT_ID, GROUP, TOPIC, Bench
from tests.admin_calls.operations import BAD_ASKED_BY, under_way
from tests.admin_calls.rows import CONTROL, ENDLESS, Fields, Never, Refusal, Row, Table, Unseen, bad_names, of_service
from tests.admin_calls.topics_and_groups import BAD, MISSING, NO_FIELDS

RESET: Final = {
    "dry_run": True,
    "reset_offset.group": GROUP,
    "reset_offset.topic": TOPIC,
    "reset_offset.latest": {},
}
OTHER_WORK: Final = {"reset_offset.group": None, "reset_offset.topic": None, "reset_offset.latest": None}
NO_JOB: Final = Refusal({"id": 1}, MISSING, "no job 1")
BAD_JOB: Final = Refusal({"id": -1}, MISSING, "no job -1")


def job(bench: Bench) -> Fields:
    """One that others may not know of."""
    return {"id": bench.job(GROUP, TOPIC)}


def with_job(bench: Bench) -> Fields:
    job(bench)
    return {}


JOBS: Final = of_service(
    "quarry.admin.v1.JobService",
    BeginJob=Row(
        request=RESET,
        holds=lambda job: bool((job.kind, job.dry_run) == ("reset-offset", True)),
        missing=[
            Refusal({"reset_offset.group": "nobody"}, MISSING, "no group nobody"),
            Refusal({"reset_offset.topic": "nothing"}, MISSING, "no topic nothing"),
            Refusal({**OTHER_WORK, "resend_dead_letters.group": "nobody"}, MISSING, "group nobody has no dead letters"),
            Refusal({**OTHER_WORK, "resend_messages.topic": "nothing"}, MISSING, "no topic nothing"),
        ],
        malformed=[
            Refusal(OTHER_WORK, BAD, "work"),
            *BAD_ASKED_BY,
            *bad_names("reset_offset.group", BAD, "group name"),
            *bad_names("reset_offset.topic", BAD, "topic name"),
            Refusal({"reset_offset.latest": None}, BAD, "position"),
            Refusal({"reset_offset.latest": None, "reset_offset.offset": -1}, BAD, "offset: -1 is negative"),
            Refusal({"reset_offset.queue": 9}, BAD, f"topic {TOPIC} has no queue 9"),
            Refusal(
                {**OTHER_WORK, "resend_dead_letters": {"group": GROUP, "offsets": [-1]}}, BAD, "offsets: -1 is negative"
            ),
            Refusal({**OTHER_WORK, "resend_messages": {"topic": TOPIC}}, BAD, "key"),
            Refusal({**OTHER_WORK, "resend_messages": {"topic": TOPIC, "queue": 0, "from_offset": -1}}, BAD, "offset"),
            Refusal({**OTHER_WORK, "resend_messages": {"topic": TOPIC, "from_ms": -1}}, BAD, "from_ms"),
            Refusal({**OTHER_WORK, "resend_messages": {"topic": CONTROL, "key": "a"}}, BAD, "topic"),
            Refusal(
                {**OTHER_WORK, "resend_messages": {"topic": TOPIC, "to_topic": ENDLESS, "key": "a"}}, BAD, "to_topic"
            ),
        ],
        needs=[f"group:{GROUP} update", f"topic:{TOPIC} update"],
    ),
    GetJob=Row(
        prepared=job,
        holds=lambda found: bool(found.kind == "reset-offset"),
        missing=[NO_JOB],
        malformed=[BAD_JOB],
        needs=Unseen(lambda ending: ending.code is MISSING),
    ),
    ListJobs=Row(
        prepared=with_job,
        holds=lambda answer: "reset-offset" in {each.kind for each in answer.jobs},
        missing=Never("a list may be empty"),
        malformed=NO_FIELDS,
        needs=Unseen(lambda ending: ending.code is StatusCode.OK and not ending.answers[0].jobs),
    ),
    CancelJob=Row(
        prepared=under_way,
        holds=lambda cancelled: bool(cancelled.kind == "verify"),
        missing=[NO_JOB],
        malformed=[BAD_JOB],
        needs=Unseen(lambda ending: ending.code is MISSING),
    ),
)

CLIENTS: Final = of_service(
    "quarry.admin.v1.ClientService",
    ListClients=Row(
        request={"type": "CLIENT_TYPE_CONSUMER", "group": GROUP, "topic": TOPIC},
        holds=lambda pages: [client.client_id for page in pages for client in page.clients] == [CLIENT_ID],
        missing=[
            Refusal({"group": "nobody"}, MISSING, "no group nobody"),
            Refusal({"topic": "nothing"}, MISSING, "no topic nothing"),
        ],
        malformed=[
            Refusal({"type": 99}, BAD, "type: 99"),
            Refusal({"type": "CLIENT_TYPE_PRODUCER"}, BAD, "group: not allowed for producers, which have no group"),
            *bad_names("group", BAD, "group name")[1:],
            *bad_names("topic", BAD, "topic name")[1:],
        ],
        needs=[f"group:{GROUP} get", f"topic:{TOPIC} get"],
    ),
)

ROWS: Final[Table] = {**JOBS, **CLIENTS}
