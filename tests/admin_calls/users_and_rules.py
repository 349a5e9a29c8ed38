"""`quarry.admin.v1.SecurityService`: users and rules. No rule allows any of its calls."""

from __future__ import annotations

from typing import Final

from tests.admin_calls.bench import TOPIC, USER, Bench
from tests.admin_calls.rows import (
    CONTROL,
    ENDLESS,
    Fields,
    Never,
    Refusal,
    Row,
    SuperUsers,
    Table,
    bad_names,
    of_service,
)
from tests.admin_calls.topics_and_groups import BAD, BAD_PREFIX, EXISTS, MISSING

SUPER: Final = SuperUsers()
NOBODY: Final = Refusal({"name": "nobody"}, MISSING, "no user nobody")
NO_USER: Final = Refusal({"user": "nobody"}, MISSING, "no user nobody")
BAD_NAME: Final = [*bad_names("name", BAD, "user name"), Refusal({"name": "a/b"}, BAD, "user name 'a/b'")]
BAD_USER: Final = [*bad_names("user", BAD, "user name"), Refusal({"user": "a/b"}, BAD, "user name 'a/b'")]
BAD_SECRET: Final = [
    Refusal({"secret": bad}, BAD, "12 to 256 printable") for bad in ("", "short", "with a blank or two", ENDLESS)
]
BAD_RESOURCE: Final = [
    ("", "resource ''"),
    ("topics:a", "resource 'topics:a'"),
    ("topic:a*b", "has a * before its end"),
    (ENDLESS, "resource"),
]
WRONG_SUBJECTS: Final = [["no subject"], [""], [CONTROL], [ENDLESS], [f"CN=a{number}" for number in range(17)]]


def new_user(bench: Bench) -> Fields:
    return {"name": bench.user()}


def with_two_secrets(bench: Bench) -> Fields:
    name = bench.user()
    bench.call("quarry.admin.v1.SecurityService/AddSecret", b"\n" + bytes([len(name)]) + name.encode())
    return {"name": name}


def with_rule(bench: Bench) -> Fields:
    return {"user": bench.user(f"topic:{TOPIC} get")}


RULE: Final = {"rule.resource": f"topic:{TOPIC}", "rule.actions": ["pub"], "rule.decision": "allow"}

ROWS: Final[Table] = of_service(
    "quarry.admin.v1.SecurityService",
    CreateUser=Row(
        request={"name": "made"},
        prepared=lambda bench: {"name": bench.name("made")},
        holds=lambda answer: bool(answer.user.kind == "normal" and answer.generated_secret),
        missing=Never("it is made; one that is there already is refused as malformed"),
        malformed=[
            Refusal({"name": USER}, EXISTS, f"user {USER} exists"),
            *BAD_NAME,
            *BAD_SECRET,
            Refusal({"kind": "root"}, BAD, "kind 'root'"),
            Refusal({"secret": "x" * 12, "without_secret": True}, BAD, "secret"),
            *(Refusal({"certificates": bad}, BAD, "certificate") for bad in WRONG_SUBJECTS),
        ],
        needs=SUPER,
    ),
    UpdateUser=Row(
        request={"name": USER},
        prepared=lambda bench: {**new_user(bench), "enabled": False},
        holds=lambda user: not user.enabled,
        missing=[NOBODY],
        malformed=[
            *BAD_NAME,
            Refusal({"kind": "root"}, BAD, "kind 'root'"),
            Refusal({"kind": ""}, BAD, "kind ''"),
            *(Refusal({"certificates.subjects": bad}, BAD, "certificate") for bad in WRONG_SUBJECTS),
        ],
        needs=SUPER,
    ),
    DeleteUser=Row(
        request={"name": "gone"},
        prepared=new_user,
        holds=lambda answer: not answer.ListFields(),
        missing=[NOBODY],
        malformed=BAD_NAME,
        needs=SUPER,
    ),
    GetUser=Row(
        request={"name": USER},
        holds=lambda user: bool((user.name, user.kind) == (USER, "normal")),
        missing=[NOBODY],
        malformed=BAD_NAME,
        needs=SUPER,
    ),
    ListUsers=Row(
        request={"prefix": USER},
        holds=lambda pages: [user.name for page in pages for user in page.users] == [USER],
        missing=Never("a list may be empty"),
        malformed=BAD_PREFIX,
        needs=SUPER,
    ),
    AddSecret=Row(
        request={"name": USER},
        prepared=new_user,
        holds=lambda added: bool(added.secret.number == 2 and added.generated_secret),
        missing=[NOBODY],
        malformed=[
            *BAD_NAME,
            *BAD_SECRET,
            Refusal(with_two_secrets, BAD, "has the secrets 1 and 2"),
        ],
        needs=SUPER,
    ),
    RemoveSecret=Row(
        request={"name": USER, "number": 1},
        prepared=with_two_secrets,
        holds=lambda answer: not answer.ListFields(),
        missing=[NOBODY, Refusal({"number": 9}, BAD, f"user {USER} has no secret 9")],
        malformed=[
            *BAD_NAME,
            Refusal({"number": -1}, BAD, f"user {USER} has no secret -1"),
            Refusal({}, BAD, f"secret 1 is the only credential of user {USER}"),
        ],
        needs=SUPER,
    ),
    ResealSecrets=Row(
        holds=lambda resealed: bool(resealed.count >= 2),
        missing=Never("it is about all users"),
        malformed=Never("the request has no fields"),
        needs=SUPER,
    ),
    SetRule=Row(
        request={"user": USER, **RULE},
        prepared=lambda bench: {"user": bench.user()},
        holds=lambda rule: bool(rule.resource == f"topic:{TOPIC}" and list(rule.actions) == ["pub"]),
        missing=[NO_USER],
        malformed=[
            *BAD_USER,
            *(Refusal({"rule.resource": bad}, BAD, text) for bad, text in BAD_RESOURCE),
            Refusal({"rule.resource": f"topic:{CONTROL}"}, BAD, "resource"),
            Refusal({"rule.actions": []}, BAD, "no actions"),
            Refusal({"rule.actions": ["write"]}, BAD, "actions 'write'"),
            Refusal({"rule.decision": "maybe"}, BAD, "decision 'maybe'"),
            Refusal({"rule.decision": None}, BAD, "decision ''"),
            Refusal({"rule.sources": ["10.0.0.1/8"]}, BAD, "source '10.0.0.1/8'"),
            Refusal({"rule.sources": ["10.0.0.1"] * 33}, BAD, "33 sources"),
        ],
        needs=SUPER,
    ),
    RemoveRule=Row(
        request={"user": USER, "resource": f"topic:{TOPIC}"},
        prepared=with_rule,
        holds=lambda answer: not answer.ListFields(),
        missing=[NO_USER, Refusal({"resource": "topic:nothing"}, MISSING, f"user {USER} has no rule of topic:nothing")],
        malformed=[
            *BAD_USER,
            *(Refusal({"resource": bad}, BAD, text) for bad, text in BAD_RESOURCE[:3]),
            Refusal({"decision": "maybe"}, BAD, "decision 'maybe'"),
        ],
        needs=SUPER,
    ),
    GetPolicy=Row(
        request={"user": USER},
        holds=lambda policy: [rule.resource for rule in policy.rules] == [f"topic:{TOPIC}"],
        missing=[NO_USER],
        malformed=BAD_USER,
        needs=SUPER,
    ),
    ListPolicies=Row(
        request={"prefix": USER},
        holds=lambda pages: [policy.user for page in pages for policy in page.policies] == [USER],
        missing=Never("a list may be empty"),
        malformed=BAD_PREFIX,
        needs=SUPER,
    ),
    TestAccess=Row(
        request={"user": USER, "action": "get", "resource": f"topic:{TOPIC}"},
        holds=lambda answer: bool(answer.decision == "allow" and answer.rule.resource == f"topic:{TOPIC}"),
        missing=[NO_USER],
        malformed=[
            *BAD_USER,
            Refusal({"action": "write"}, BAD, "action 'write'"),
            *(Refusal({"resource": bad}, BAD, text) for bad, text in BAD_RESOURCE[:3]),
            Refusal({"resource": "topic:a*"}, BAD, "resource 'topic:a*'"),
            Refusal({"resource": "*"}, BAD, "resource '*'"),
            Refusal({"source": "localhost"}, BAD, "source 'localhost'"),
        ],
        needs=SUPER,
    ),
)
