"""Users and rules by remoting, as RocketMQ's tools show and change them. They are for super users alone.

Without users (`security.authentication` off) nobody may make any: a stranger could make a user for later.
A user's secret is never answered.

| RocketMQ | here |
|---|---|
| subject `User:alice` | the user `alice` |
| policy entry: resource `Topic:orders*`, actions `Pub`, `Sub`, decision `Allow`, source addresses | a rule |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Final, TypeVar

import orjson

from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.remoting.codes import RequestCode, ResponseCode
from quarry_mq.server.front.remoting import Handler, RemotingCall
from quarry_mq.server.remoting.edge import RemotingEdge
from quarry_mq.server.remoting.wire import (
    Json,
    RemotingRefused,
    invalid,
    json_object,
    member_objects,
    member_text,
    text_of,
)
from quarry_mq.store.errors import Forbidden, RuleNotFound
from quarry_mq.store.security.model import (
    SECRETS_MAX,
    Action,
    Decision,
    Policy,
    Resource,
    Rule,
    SealedUser,
    Secret,
    User,
    UserKind,
)
from quarry_mq.store.security.policies import PolicyTable, ordered_rules, parse_source
from quarry_mq.store.security.users import UserTable

SUBJECT_PREFIX: Final = "User:"
LISTED_MAX: Final = 10_000
"""Users in one answer: more are refused, since the protocol has no pages."""

_Value = TypeVar("_Value", bound=Enum)


class RemotingUsers:
    """Serves requests for users and rules."""

    def __init__(self, edge: RemotingEdge, users: UserTable, policies: PolicyTable, clock: Clock) -> None:
        self._edge = edge
        self._users = users
        self._policies = policies
        self._clock = clock

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        handler = self._for_super
        return {
            RequestCode.CREATE_USER: handler(self._create_user),
            RequestCode.UPDATE_USER: handler(self._update_user),
            RequestCode.DELETE_USER: handler(self._delete_user),
            RequestCode.GET_USER: handler(self._get_user),
            RequestCode.LIST_USERS: handler(self._list_users),
            RequestCode.CREATE_RULES: handler(self._put_rules),
            RequestCode.UPDATE_RULES: handler(self._put_rules),
            RequestCode.DELETE_RULES: handler(self._delete_rules),
            RequestCode.GET_RULES: handler(self._get_rules),
            RequestCode.LIST_RULES: handler(self._list_rules),
        }

    # -- users

    def _create_user(self, call: RemotingCall) -> None:
        body, now_ms = json_object(call.command.body), self._clock.wall_ms()
        password = member_text(body, "password")
        if not password:
            raise invalid("password in the body is missing")
        kind = _value(UserKind, member_text(body, "userType", "normal"), "userType")
        secrets = (Secret(1, password, now_ms),)
        self._users.create(
            User(name=text_of(call.fields, "username"), kind=kind, secrets=secrets, created_at_ms=now_ms)
        )
        call.answer()

    def _update_user(self, call: RemotingCall) -> None:
        """Change a user. A new password replaces all secrets of the user."""
        body = json_object(call.command.body)
        user = self._user(text_of(call.fields, "username"))
        if kind := member_text(body, "userType"):
            user = replace(user, kind=_value(UserKind, kind, "userType"))
        if status := member_text(body, "userStatus"):
            user = replace(user, enabled=status.lower() == "enable")
        user = self._users.update(user)
        if password := member_text(body, "password"):
            before = [each.number for each in user.secrets]
            while len(before) >= SECRETS_MAX:
                self._users.remove_secret(user.name, before.pop(0))
            self._users.add_secret(user.name, password, self._clock.wall_ms())
            for number in before:
                self._users.remove_secret(user.name, number)
        call.answer()

    def _delete_user(self, call: RemotingCall) -> None:
        """Delete a user with all rules; one that does not exist is deleted already."""
        name = text_of(call.fields, "username")
        if self._users.get_sealed(name) is not None:
            self._users.delete(name)
        call.answer()

    def _get_user(self, call: RemotingCall) -> None:
        call.answer(body=orjson.dumps(_user_info(self._user(text_of(call.fields, "username")))))

    def _list_users(self, call: RemotingCall) -> None:
        wanted = call.fields.get("filter", "")
        found = [_user_info(each) for each in _few(self._users.list()) if wanted in each.name]
        call.answer(body=orjson.dumps(found))

    # -- rules

    def _put_rules(self, call: RemotingCall) -> None:
        """Set rules in turn; each replaces that of the same resource and decision."""
        user = self._user(_subject(call))
        policies = member_objects(json_object(call.command.body), "policies")
        rules = [_rule(entry) for policy in policies for entry in member_objects(policy, "entries")]
        for rule in rules:
            self._policies.put_rule(user.name, rule)
        call.answer()

    def _delete_rules(self, call: RemotingCall) -> None:
        """Remove the rules of a resource, or all rules of a user."""
        user = self._user(_subject(call))
        resource = call.fields.get("resource")
        wanted = [_resource(resource)] if resource else {each for each, _ in self._policies.get(user.name).rules}
        for each in wanted:
            with contextlib.suppress(RuleNotFound):
                self._policies.remove_rule(user.name, each, None)
        call.answer()

    def _get_rules(self, call: RemotingCall) -> None:
        policy = self._policies.get(self._user(_subject(call)).name)
        if not policy.rules:
            raise RemotingRefused(ResponseCode.POLICY_NOT_EXIST, f"user {policy.user} has no rules")
        call.answer(body=orjson.dumps(_rules_info(policy)))

    def _list_rules(self, call: RemotingCall) -> None:
        subject, resource = call.fields.get("subjectFilter", ""), call.fields.get("resourceFilter", "")
        infos = [_rules_info(each) for each in _few(self._policies.list()) if subject in SUBJECT_PREFIX + each.user]
        if resource:
            infos = [each for each in infos if resource in str(each["policies"])]
        call.answer(body=orjson.dumps(infos))

    # -- common parts

    def _for_super(self, serve: Callable[[RemotingCall], None]) -> Handler:
        """Return a handler that serves super users alone."""

        def check_and_serve(call: RemotingCall) -> None:
            if not self._edge.has_users:
                raise Forbidden("this broker asks for no users: turn on security.authentication first")
            self._edge.require(call, ())
            caller = self._users.get_sealed(self._edge.user)
            if caller is None or caller.kind is not UserKind.SUPER:
                raise Forbidden("only super users may change users and rules")
            serve(call)

        return self._edge.handler(check_and_serve)

    def _user(self, name: str) -> SealedUser:
        user = self._users.get_sealed(name)
        if user is None:
            raise RemotingRefused(ResponseCode.USER_NOT_EXIST, f"no user {name[:64]}")
        return user


_Row = TypeVar("_Row")


def _few(rows: Iterable[_Row]) -> list[_Row]:
    found: list[_Row] = []
    for each in rows:
        if len(found) == LISTED_MAX:
            raise RemotingRefused(ResponseCode.SYSTEM_ERROR, f"more than {LISTED_MAX} rows: see `quarry user list`")
        found.append(each)
    return found


def _subject(call: RemotingCall) -> str:
    """Return the name of the user that a request is about."""
    subject = text_of(call.fields, "subject")
    if not subject.startswith(SUBJECT_PREFIX):
        raise invalid(f"subject {subject[:64]!r} is no user: it begins with {SUBJECT_PREFIX}")
    return subject.removeprefix(SUBJECT_PREFIX)


def _resource(text: str) -> Resource:
    """Return the resource of a text such as `Topic:orders*`. Raises Invalid."""
    kind, colon, name = text.partition(":")
    return Resource.parse(kind.lower() + colon + name)


def _rule(entry: Mapping[str, Json]) -> Rule:
    """Return the rule in an entry of a policy. Raises Invalid."""
    actions, sources = entry.get("actions") or [], entry.get("sourceIps") or []
    if not all(isinstance(each, list) and all(isinstance(text, str) for text in each) for each in (actions, sources)):
        raise invalid("actions and sourceIps in the body are lists of texts")
    allowed = set(Action) if "all" in map(str.lower, actions) else {_value(Action, each, "actions") for each in actions}
    return Rule(
        resource=_resource(member_text(entry, "resource")),
        actions=frozenset(allowed),
        decision=_value(Decision, member_text(entry, "decision", "allow"), "decision"),
        sources=tuple(map(parse_source, sources)),
    )


def _value(kind: type[_Value], text: str, member: str) -> _Value:
    try:
        return kind(text.lower())
    except ValueError:
        raise invalid(f"{member} {text[:32]!r}: one of {', '.join(each.value for each in kind)} is allowed") from None


def _user_info(user: SealedUser) -> dict[str, Json]:
    return {
        "userStatus": "enable" if user.enabled else "disable",
        "userType": user.kind.value.capitalize(),
        "username": user.name,
    }


def _rules_info(policy: Policy) -> dict[str, Json]:
    entries = [
        {
            "actions": [each.value.capitalize() for each in Action if each in rule.actions],
            "decision": rule.decision.value.capitalize(),
            "resource": _shown(rule.resource),
            "sourceIps": [str(each) for each in rule.sources],
        }
        for rule in ordered_rules(policy)
    ]
    return {"policies": [{"entries": entries, "policyType": "Custom"}], "subject": SUBJECT_PREFIX + policy.user}


def _shown(resource: Resource) -> str:
    text = str(resource)
    return text if text == "*" else text[0].upper() + text[1:]
