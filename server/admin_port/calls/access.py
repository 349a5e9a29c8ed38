"""The rights that each call of the admin port needs. A call that is not listed here is for super users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from quarry_mq.protocol.admin_methods import service_of, short_name
from quarry_mq.protocol.proto.quarry.admin.v1.clients_pb2 import CLIENT_TYPE_CONSUMER, CLIENT_TYPE_PRODUCER
from quarry_mq.server.admin.message_lookup import has_copies
from quarry_mq.server.security.authorization import SUPER_USERS_ONLY, Need
from quarry_mq.server.security.credentials import Access
from quarry_mq.store.security.model import Action, ResourceKind

ALL: Final = "*"
"""The name of the resource of a list. Only rules for all resources of a kind cover it."""

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
REFLECTION_SERVICE: Final = "grpc.reflection.v1alpha.ServerReflection"

OPEN_SERVICES: Final = (HEALTH_SERVICE, "quarry.cluster.v1.ClusterService")
"""Services that need no user: probes cannot sign, and the members' service checks the cluster's key itself."""

STRANGERS_SERVICES: Final = (HEALTH_SERVICE, REFLECTION_SERVICE)
"""Services whose calls keep a stranger's slot where no authentication is required: none of them takes long."""

READERS_SERVICES: Final = (REFLECTION_SERVICE,)
"""Services for every user: the list of services is no secret, but strangers do not need it."""

SUPER_SERVICES: Final = ("quarry.admin.v1.SecurityService",)
"""Services for super users even without rules: a user who changes users could make itself a super user."""

JOB_SERVICE: Final = "quarry.admin.v1.JobService"
"""The service of jobs. The rights that a job needs depend on the job."""

CLUSTER: Final = ResourceKind.CLUSTER
TOPIC: Final = ResourceKind.TOPIC
GROUP: Final = ResourceKind.GROUP

Accesses = Callable[[Any, str], Iterable[Access]]
"""Return the accesses of a request, in a cluster of this name."""


def _cluster(action: Action) -> Accesses:
    return lambda _request, cluster: [Access(CLUSTER, cluster, action)]


def _named(kind: ResourceKind, action: Action) -> Accesses:
    return lambda request, _cluster: [Access(kind, request.name, action)]


def _listed(*kinds: ResourceKind) -> Accesses:
    return lambda _request, _cluster: [Access(kind, ALL, Action.LIST) for kind in kinds]


def _of_topic(action: Action) -> Accesses:
    return lambda request, _cluster: [Access(TOPIC, request.topic, action)]


def _history(request: Any, cluster: str) -> Iterable[Access]:
    """Return what the past of a topic, of a group or of the broker needs."""
    named = [Access(TOPIC, request.topic, Action.GET)] if request.topic else []
    named += [Access(GROUP, request.group, Action.GET)] if request.group else []
    return named or _cluster(Action.GET)(request, cluster)


def _of_group(action: Action) -> Accesses:
    return lambda request, _cluster: [Access(GROUP, request.group, action)]


def _spans(request: Any, _cluster: str) -> list[Access]:
    of_group = [Access(GROUP, request.group, Action.GET)] if request.group else []
    return [Access(TOPIC, request.topic, Action.GET), *of_group]


def _reset(request: Any, _cluster: str) -> list[Access]:
    return [Access(GROUP, request.group, Action.UPDATE), Access(TOPIC, request.topic, Action.UPDATE)]


def job_accesses(named: Any) -> list[Access]:
    """Return the accesses of a job's work, given a request to begin it or the job itself; none if it names no work."""
    match named.WhichOneof("work"):
        case "reset_offset":
            return _reset(named.reset_offset, "")
        case "resend_dead_letters":
            return [Access(GROUP, named.resend_dead_letters.group, Action.UPDATE)]
        case "resend_messages":
            asked = named.resend_messages
            return [Access(TOPIC, asked.topic, Action.GET), Access(TOPIC, asked.to_topic or asked.topic, Action.PUB)]
        case _:
            return []


def _between(group_action: Action, topic_action: Action) -> Accesses:
    """Return the accesses of calls of the official service, whose requests hold a group and a topic as messages."""
    return lambda request, _cluster: [
        Access(GROUP, request.group.name, group_action),
        Access(TOPIC, request.topic.name, topic_action),
    ]


def _official(kind: ResourceKind, action: Action) -> Accesses:
    return lambda request, _cluster: [Access(kind, getattr(request, kind.value).name, action)]


def _subscriptions(request: Any, _cluster: str) -> list[Access]:
    """Return the group and topic that are named; a request without a name asks for the subscriptions of all groups."""
    named = [
        Access(kind, getattr(request, kind.value).name, Action.GET)
        for kind in (GROUP, TOPIC)
        if request.HasField(kind.value)
    ]
    return named or [Access(GROUP, ALL, Action.LIST)]


def _message(request: Any, _cluster: str) -> list[Access]:
    """Return the access to messages of a topic; a request without a topic asks for messages of all topics."""
    return [Access(TOPIC, request.topic or ALL, Action.GET)]


def _clients(request: Any, _cluster: str) -> list[Access]:
    """Return the group and topic that are named; a request without a name asks for clients of all groups and topics."""
    named = [Access(kind, name, Action.GET) for kind, name in ((GROUP, request.group), (TOPIC, request.topic)) if name]
    if named:
        return named
    kinds = {CLIENT_TYPE_CONSUMER: (GROUP,), CLIENT_TYPE_PRODUCER: (TOPIC,)}.get(request.type, (GROUP, TOPIC))
    return [Access(kind, ALL, Action.LIST) for kind in kinds]


ACCESSES: Final[Mapping[str, Accesses]] = {
    "Admin/ChangeLogLevel": _cluster(Action.UPDATE),
    "Admin/DescribeTopicStatus": _official(TOPIC, Action.GET),
    "Admin/ListSubscription": _subscriptions,
    "Admin/DescribeSubscription": _subscriptions,
    "Admin/DeleteSubscription": _between(Action.UPDATE, Action.UPDATE),
    "Admin/DescribeGroupAccumulation": _official(GROUP, Action.GET),
    "Admin/ListConsumerConnection": _official(GROUP, Action.GET),
    "Admin/ResetGroupOffset": _between(Action.UPDATE, Action.UPDATE),
    "Admin/QueryMessage": _official(TOPIC, Action.GET),
    "Admin/PrintThreadStackTrace": _official(GROUP, Action.GET),
    "Admin/VerifyMessage": _between(Action.UPDATE, Action.GET),
    "Admin/AdminSendMessage": _official(TOPIC, Action.PUB),
    "Admin/GetConsumerRunningInfo": _official(GROUP, Action.GET),
    "Admin/GetTopicRoute": _official(TOPIC, Action.GET),
    "Admin/QueryTimeSpan": _official(GROUP, Action.GET),
    "Admin/GetProxyRuntimeStats": _cluster(Action.GET),
    "AdminService/GetBroker": _cluster(Action.GET),
    "AdminService/CreateTopic": _named(TOPIC, Action.CREATE),
    "AdminService/UpdateTopic": _named(TOPIC, Action.UPDATE),
    "AdminService/DeleteTopic": _named(TOPIC, Action.DELETE),
    "AdminService/GetTopic": _named(TOPIC, Action.GET),
    "AdminService/ListTopics": _listed(TOPIC),
    "AdminService/CreateGroup": _named(GROUP, Action.CREATE),
    "AdminService/UpdateGroup": _named(GROUP, Action.UPDATE),
    "AdminService/DeleteGroup": _named(GROUP, Action.DELETE),
    "AdminService/GetGroup": _named(GROUP, Action.GET),
    "AdminService/ListGroups": _listed(GROUP),
    "AdminService/ResetOffset": _reset,
    "AdminService/ListQueues": _of_topic(Action.GET),
    "AdminService/SummarizeQueues": _cluster(Action.GET),
    "AdminService/ExpireSegments": _cluster(Action.UPDATE),
    "AdminService/BeginBackup": _cluster(Action.UPDATE),
    "AdminService/RenewBackup": _cluster(Action.UPDATE),
    "AdminService/EndBackup": _cluster(Action.UPDATE),
    "BrowsingService/BrowseMessages": _of_topic(Action.GET),
    "BrowsingService/TailMessages": _of_topic(Action.GET),
    "ClientService/ListClients": _clients,
    "DeadLetterService/ListDeadLetters": _of_group(Action.GET),
    "DeadLetterService/ResendDeadLetters": _of_group(Action.UPDATE),
    "IndexService/ListIndexFiles": _cluster(Action.GET),
    "IndexService/VerifyIndexFiles": _cluster(Action.GET),
    "IndexService/CompactIndexFiles": _cluster(Action.UPDATE),
    "IndexService/UploadIndexFiles": _cluster(Action.UPDATE),
    "JobService/BeginJob": lambda request, _cluster: job_accesses(request),
    # these rights are checked for each job
    "JobService/GetJob": lambda _request, _cluster: [],
    "JobService/ListJobs": lambda _request, _cluster: [],
    "JobService/CancelJob": lambda _request, _cluster: [],
    "LiteTopicService/ListLiteTopics": _of_topic(Action.GET),
    "LiteTopicService/GetLiteTopic": _of_topic(Action.GET),
    "LiteTopicService/DeleteLiteTopic": _of_topic(Action.DELETE),
    "LiteTopicService/GetLiteTopicStatistics": _of_topic(Action.GET),
    "LiteTopicService/ListLiteBacklog": lambda request, _cluster: [
        Access(TOPIC, request.topic, Action.GET),
        Access(GROUP, request.group, Action.GET),
    ],
    "MembersService/ListMembers": _cluster(Action.GET),
    "MembersService/DrainMember": _cluster(Action.UPDATE),
    "MembersService/ActivateMember": _cluster(Action.UPDATE),
    "MembersService/RemoveMember": _cluster(Action.UPDATE),
    "MembersService/Rejoin": _cluster(Action.UPDATE),
    # each member checks the rights that the call needs which it makes
    "AllMembersService/AskMembers": lambda _request, _cluster: [],
    "AllMembersService/ListTopicFigures": _listed(TOPIC, GROUP),
    "AllMembersService/ListGroupFigures": _listed(TOPIC, GROUP),
    "AllMembersService/GetHistory": _history,
    "MigrationService/GetMigration": _cluster(Action.GET),
    "MigrationService/AdvanceMigration": _cluster(Action.UPDATE),
    "MigrationService/RollBackMigration": _cluster(Action.UPDATE),
    "SettingsService/ListSettings": _cluster(Action.GET),
    "SettingsService/GetSetting": _cluster(Action.GET),
    "SettingsService/SetSetting": _cluster(Action.UPDATE),
    "SettingsService/ResetSetting": _cluster(Action.UPDATE),
    "QueryService/GetMessage": _message,
    "QueryService/QueryIds": _of_topic(Action.GET),
    "QueryService/QueryMessages": _of_topic(Action.GET),
    "QueryService/TraceMessages": _of_topic(Action.GET),
    "ReplicaService/ListReplicas": _cluster(Action.GET),
    "StorageService/GetStorage": _cluster(Action.GET),
    "StorageService/ListQueueSpans": _spans,
    "StorageService/ListPending": _cluster(Action.GET),
    "VerificationService/BeginVerification": _cluster(Action.UPDATE),
    "VerificationService/GetVerification": _cluster(Action.GET),
    "VerificationService/ListVerifications": _cluster(Action.GET),
    "VerificationService/CancelVerification": _cluster(Action.UPDATE),
    "OverviewService/GetOverview": _cluster(Action.GET),
    "OverviewService/ListOverviews": _cluster(Action.GET),
    "OverviewService/GetHistory": _history,
    "OverviewService/ListTopicFigures": _listed(TOPIC, GROUP),
    "OverviewService/ListGroupFigures": _listed(TOPIC, GROUP),
}
"""The accesses of each call, by service and method."""

READING: Final = (
    "Get",
    "List",
    "Describe",
    "Query",
    "Print",
    "Summarize",
    "VerifyIndexFiles",
    "Test",
    "Trace",
    "Browse",
    "Tail",
    "RenewBackup",
    "AskMembers",
)
"""The beginnings of the names of methods that change nothing; renewing a backup is no change either.

Changes that members are asked for are in the audit of the members that make them.
"""


def admin_needs(method: str, request: Any, cluster: str) -> list[Need]:
    """Return the rights that a call needs. `method` is the whole path."""
    accesses = ACCESSES.get(short_name(method))
    if accesses is None or _is_copied_from_others(method, request):
        return list(SUPER_USERS_ONLY)
    return [(each,) for each in accesses(request, cluster)]


def _is_copied_from_others(method: str, request: Any) -> bool:
    """Return whether a job would copy other topics' messages from an internal topic, without checking each."""
    return (
        short_name(method) == "JobService/BeginJob"
        and request.WhichOneof("work") == "resend_messages"
        and has_copies(request.resend_messages.topic)
    )


def is_change(method: str) -> bool:
    """Return whether the method may change something, judged by its name."""
    return service_of(method).startswith(("quarry.", "apache.")) and not method.rpartition("/")[2].startswith(READING)
