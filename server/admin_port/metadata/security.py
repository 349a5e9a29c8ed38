"""Serve `quarry.admin.v1.SecurityService` on the admin port: users and their rights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import grpc.aio

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from quarry_mq.protocol.proto.quarry.admin.v1.security_pb2_grpc import (
    SecurityServiceServicer,
    add_SecurityServiceServicer_to_server,
)
from quarry_mq.server.admin_port.calls.edge import answered, answers, pages, printable, streams
from quarry_mq.server.observability.error_reporter import ErrorReporter
from quarry_mq.store.errors import Invalid, UserNotFound
from quarry_mq.store.security.model import (
    Action,
    Decision,
    Policy,
    Resource,
    ResourceKind,
    Rule,
    SealedSecret,
    SealedUser,
    Secret,
    User,
    UserKind,
)
from quarry_mq.store.security.policies import PolicyTable, SourceAddress, deciding_rule, ordered_rules, parse_source
from quarry_mq.store.security.users import UserTable, check_user_name, generated_secret

NAME: Final = pb.DESCRIPTOR.services_by_name["SecurityService"].full_name

_Context = grpc.aio.ServicerContext[Any, Any]
_Value = TypeVar("_Value", bound=Enum)


class SecurityService(SecurityServiceServicer):
    """Checks and translates requests and answers. Answers are built from rows whose secrets are sealed."""

    def __init__(self, users: UserTable, policies: PolicyTable, clock: Clock, error_reporter: ErrorReporter) -> None:
        self._users = users
        self._policies = policies
        self._clock = clock
        self.error_reporter = error_reporter

    def add_to(self, server: grpc.aio.Server) -> str:
        """Register the service with the server; returns its full name."""
        add_SecurityServiceServicer_to_server(self, server)
        return NAME

    @answers
    def CreateUser(self, request: pb.CreateUserRequest) -> pb.CreateUserResponse:
        now_ms = self._clock.wall_ms()
        if request.without_secret and request.HasField("secret"):
            raise Invalid("secret: not allowed together with without_secret")
        generated = "" if request.without_secret or request.HasField("secret") else generated_secret()
        text = request.secret or generated
        user = self._users.create(
            User(
                name=request.name,
                kind=_value(UserKind, request.kind or "normal", "kind"),
                secrets=() if request.without_secret else (Secret(1, text, now_ms),),
                certificates=tuple(request.certificates),
                created_at_ms=now_ms,
            )
        )
        return pb.CreateUserResponse(user=user_message(user), generated_secret=generated)

    @answers
    def UpdateUser(self, request: pb.UpdateUserRequest) -> pb.User:
        user = self._user(request.name)
        if request.HasField("kind"):
            user = replace(user, kind=_value(UserKind, request.kind, "kind"))
        if request.HasField("enabled"):
            user = replace(user, enabled=request.enabled)
        if request.HasField("certificates"):
            user = replace(user, certificates=tuple(request.certificates.subjects))
        return user_message(self._users.update(user))

    @answers
    def DeleteUser(self, request: pb.DeleteUserRequest) -> pb.DeleteUserResponse:
        self._users.delete(self._user(request.name).name)
        return pb.DeleteUserResponse()

    @answers
    def GetUser(self, request: pb.GetUserRequest) -> pb.User:
        return user_message(self._user(request.name))

    @streams
    def ListUsers(self, request: pb.ListUsersRequest) -> Iterator[pb.ListUsersResponse]:
        for page in pages(self._users.list(printable("prefix", request.prefix))):
            yield pb.ListUsersResponse(users=map(user_message, page))

    @answers
    def AddSecret(self, request: pb.AddSecretRequest) -> pb.AddSecretResponse:
        given = request.secret if request.HasField("secret") else None
        secret = self._users.add_secret(self._user(request.name).name, given, self._clock.wall_ms())
        return pb.AddSecretResponse(
            secret=_secret_message(secret), generated_secret=secret.text if given is None else ""
        )

    @answers
    def RemoveSecret(self, request: pb.RemoveSecretRequest) -> pb.RemoveSecretResponse:
        self._users.remove_secret(self._user(request.name).name, request.number)
        return pb.RemoveSecretResponse()

    async def ResealSecrets(self, _request: pb.ResealSecretsRequest, context: _Context) -> pb.ResealSecretsResponse:
        # on a thread: a hundred thousand secrets take some seconds
        count = await answered(context, asyncio.to_thread(self._users.reseal), self.error_reporter)
        return pb.ResealSecretsResponse(count=count)

    @answers
    def SetRule(self, request: pb.SetRuleRequest) -> pb.Rule:
        given = request.rule
        rule = Rule(
            resource=Resource.parse(given.resource),
            actions=frozenset(_value(Action, each, "actions") for each in given.actions),
            decision=_value(Decision, given.decision, "decision"),
            sources=tuple(map(parse_source, given.sources)),
        )
        return rule_message(self._policies.put_rule(self._user(request.user).name, rule))

    @answers
    def RemoveRule(self, request: pb.RemoveRuleRequest) -> pb.RemoveRuleResponse:
        decision = _value(Decision, request.decision, "decision") if request.decision else None
        self._policies.remove_rule(self._user(request.user).name, Resource.parse(request.resource), decision)
        return pb.RemoveRuleResponse()

    @answers
    def GetPolicy(self, request: pb.GetPolicyRequest) -> pb.Policy:
        return policy_message(self._policies.get(self._user(request.user).name))

    @streams
    def ListPolicies(self, request: pb.ListPoliciesRequest) -> Iterator[pb.ListPoliciesResponse]:
        for page in pages(self._policies.list(printable("prefix", request.prefix))):
            yield pb.ListPoliciesResponse(policies=map(policy_message, page))

    @answers
    def TestAccess(self, request: pb.TestAccessRequest) -> pb.TestAccessResponse:
        user = self._user(request.user)
        action = _value(Action, request.action, "action")
        resource = Resource.parse(request.resource)
        if resource.is_prefix or resource.kind is ResourceKind.ANY:
            raise Invalid(f"resource {request.resource!r}: must be one resource, not a pattern")
        source = _address(request.source) if request.source else None
        rule = deciding_rule(self._policies.get(user.name), resource.kind, resource.name, action, source)
        match user, rule:
            case SealedUser(enabled=False), _:
                return pb.TestAccessResponse(decision="deny", reason="the user is disabled")
            case SealedUser(kind=UserKind.SUPER), _:
                return pb.TestAccessResponse(decision="allow", reason="super users may do everything")
            case _, None:
                return pb.TestAccessResponse(decision="deny", reason="no rule matches")
            case _, _:
                return pb.TestAccessResponse(
                    decision=rule.decision.value,
                    reason=f"the rule of {rule.resource} decides",
                    rule=rule_message(rule),
                )

    def _user(self, name: str) -> SealedUser:
        user = self._users.get_sealed(name)
        if user is None:
            check_user_name(name)
            raise UserNotFound(f"no user {name}")
        return user


def user_message(user: SealedUser) -> pb.User:
    return pb.User(
        name=user.name,
        kind=user.kind.value,
        enabled=user.enabled,
        certificates=user.certificates,
        secrets=map(_secret_message, user.secrets),
        created_at_ms=user.created_at_ms,
    )


def rule_message(rule: Rule) -> pb.Rule:
    return pb.Rule(
        resource=str(rule.resource),
        actions=[action.value for action in Action if action in rule.actions],
        decision=rule.decision.value,
        sources=map(str, rule.sources),
    )


def policy_message(policy: Policy) -> pb.Policy:
    return pb.Policy(user=policy.user, rules=map(rule_message, ordered_rules(policy)))


def _secret_message(secret: Secret | SealedSecret) -> pb.Secret:
    return pb.Secret(number=secret.number, created_at_ms=secret.created_at_ms)


def _value(kind: type[_Value], text: str, field: str) -> _Value:
    try:
        return kind(text)
    except ValueError:
        raise Invalid(f"{field} {text!r}: one of {', '.join(each.value for each in kind)} is allowed") from None


def _address(text: str) -> SourceAddress:
    try:
        return ip_address(text)
    except ValueError:
        raise Invalid(f"source {text!r} is not an address") from None
