"""Reconciles users, whose secrets come from Secrets of Kubernetes."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from quarry_mq.cli.operator.broker import Broker, CallRefused
from quarry_mq.cli.operator.declarations.declared import (
    CORRECTED,
    DeclaredReconciler,
    DriftReported,
    Found,
    Settings,
    Waiting,
    is_reported,
)
from quarry_mq.cli.operator.kubernetes import MANAGER, Kubernetes, Secret
from quarry_mq.cli.operator.resources import USER, Note, Outcome, Resource
from quarry_mq.protocol.clock import Clock
from quarry_mq.protocol.proto.quarry.admin.v1 import security_pb2 as pb
from quarry_mq.store.errors import Invalid
from quarry_mq.store.security.subjects import checked_subject

NAME_ENTRY: Final = "accessKey"
SECRET_ENTRY: Final = "secretKey"
GENERATED_BYTES: Final = 24
"""Random bytes of a generated secret, which has 32 characters."""

MINUTE_MS: Final = 60_000
PREVIOUS_DEFAULT_MINUTES: Final = 1_440
SECRETS_MAX: Final = 2
"""Secrets that a user can have at the broker."""


class UserReconciler(DeclaredReconciler):
    """Brings users and their secrets to what resources declare.

    A user goes with its resource unless that says otherwise: nobody may call as a user that nobody declares any more.
    """

    kind = USER
    noun = "user"
    deletion_policy_default = "Delete"

    def __init__(self, broker: Broker, kubernetes: Kubernetes, clock: Clock, own_user: str | None) -> None:
        """`own_user`: the user as which the operator calls the broker. No resource may declare this user."""
        super().__init__(broker, kubernetes)
        self._clock = clock
        self._own_user = own_user
        self._texts: dict[str, str] = {}  # secrets that the broker has, by the uid of the resource

    def thing(self, resource: Resource) -> str:
        return str(resource.spec.get("name", resource.name))

    def declared(self, resource: Resource) -> Settings:
        spec = resource.spec
        if self.thing(resource) == self._own_user:
            raise CallRefused(f"the operator calls the broker as user {self._own_user}, which it does not change")
        try:
            certificates = sorted(checked_subject(each) for each in spec.get("certificates", ()))
        except Invalid as error:
            raise CallRefused(str(error)) from error
        return {**{name: spec[name] for name in ("kind", "enabled") if name in spec}, "certificates": certificates}

    def unknown(self, resource: Resource, found: Found) -> str:
        if not resource.spec.get("secretName"):
            return ""
        return (
            f"it has {len(found.answer.secrets)} secrets, which cannot be compared with Secret {_secret_name(resource)}"
        )

    async def find(self, resource: Resource) -> Found | None:
        user = await self.broker.found("SecurityService/GetUser", pb.GetUserRequest(name=self.thing(resource)))
        if user is None:
            return None
        settings = {"kind": user.kind, "enabled": user.enabled, "certificates": sorted(user.certificates)}
        return Found(settings, user)

    async def create(self, resource: Resource, settings: Settings) -> None:
        request = pb.CreateUserRequest(
            name=self.thing(resource),
            kind=settings.get("kind"),
            certificates=settings["certificates"],
            without_secret=True,  # `complete` adds it
        )
        await self.broker.call("SecurityService/CreateUser", request)
        if settings.get("enabled") is False:
            await self._update(resource, {"enabled": False})

    async def change(self, resource: Resource, found: Found, changes: Settings) -> None:
        del found
        await self._update(resource, changes)

    async def _update(self, resource: Resource, changes: Settings) -> None:
        certificates = changes.get("certificates")
        request = pb.UpdateUserRequest(
            name=self.thing(resource),
            kind=changes.get("kind"),
            enabled=changes.get("enabled"),
            certificates=None if certificates is None else pb.Certificates(subjects=certificates),
        )
        await self.broker.call("SecurityService/UpdateUser", request)

    async def delete(self, resource: Resource) -> None:
        self._texts.pop(resource.uid, None)
        if self.thing(resource) != self._own_user and await self.find(resource) is not None:
            await self.broker.call("SecurityService/DeleteUser", pb.DeleteUserRequest(name=self.thing(resource)))

    async def complete(self, resource: Resource) -> Outcome:
        """Give the user the secret in its Secret, and take previous ones away when their time is over."""
        name = _secret_name(resource)
        if name is None:
            return Outcome(fields={"secret": None})
        notes: list[Note] = []
        secret = await self.kubernetes.secret(name)
        if secret is None:
            secret = await self._generated(resource, name)
            notes.append(Note("SecretCreated", f"Secret {name} is created, with a generated secret."))
        text = self._text(resource, name, secret)
        user = await self.broker.call("SecurityService/GetUser", pb.GetUserRequest(name=self.thing(resource)))
        status = _status(resource, name)
        current = next((each for each in user.secrets if _is_of(status, each)), None)
        if not self._is_applied(resource, status, secret.version, text):
            added = await self._added(resource, status, user, text)
            status = {"name": name, "version": secret.version, **_of(added)}
            notes.append(
                Note("SecretApplied", f"The broker has the secret in Secret {name}, as number {added.number}.")
            )
        elif current is None:
            if is_reported(resource):
                raise DriftReported(f"secret {status['number']}, that of Secret {name}, was removed at the broker")
            status = {**status, **_of(await self._added(resource, status, user, text))}
            notes.append(Note(CORRECTED, f"The broker has the secret in Secret {name} again."))
        else:
            notes += await self._without_previous(resource, current, user)
        self._texts[resource.uid] = text
        return Outcome(fields={"secret": status}, notes=notes)

    async def _generated(self, resource: Resource, name: str) -> Secret:
        entries = {NAME_ENTRY: self.thing(resource), SECRET_ENTRY: secrets.token_urlsafe(GENERATED_BYTES)}
        return await self.kubernetes.create_secret(name, entries, {"app.kubernetes.io/managed-by": MANAGER})

    def _text(self, resource: Resource, name: str, secret: Secret) -> str:
        """Return the text of the user's secret. Raises Waiting for a Secret that does not have it."""
        user = self.thing(resource)
        if secret.entries.get(NAME_ENTRY, user) != user:
            raise Waiting("SecretInvalid", f"Secret {name}: {NAME_ENTRY} is not {user}, the name of the user")
        text = secret.entries.get(SECRET_ENTRY, "")
        if not text:
            raise Waiting("SecretInvalid", f"Secret {name} has no entry {SECRET_ENTRY}, the secret of user {user}")
        return text

    def _is_applied(self, resource: Resource, status: Mapping[str, Any], version: str, text: str) -> bool:
        """Return whether the broker was given this text. The version of a Secret changes with each of its labels."""
        return bool(status) and (status["version"] == version or self._texts.get(resource.uid) == text)

    async def _added(self, resource: Resource, status: Mapping[str, Any], user: pb.User, text: str) -> pb.Secret:
        """Give the user the secret, in the place of one before the current one if there are two, and return it."""
        name = self.thing(resource)
        numbers = [each.number for each in user.secrets]
        previous = [each for each in numbers if each < status.get("number", 0)]
        if len(numbers) >= SECRETS_MAX:
            if not previous:
                listed = " and ".join(map(str, numbers))
                advice = f"remove one of them with `quarry user remove-secret {name} NUMBER`"
                raise Waiting("TooManySecrets", f"user {name} has the secrets {listed}, which is the maximum: {advice}")
            await self._remove(name, previous[0])
        request = pb.AddSecretRequest(name=name, secret=text)
        answer: pb.AddSecretResponse = await self.broker.call("SecurityService/AddSecret", request)
        return answer.secret

    async def _without_previous(self, resource: Resource, current: pb.Secret, user: pb.User) -> list[Note]:
        """Remove the other secrets of the user whose time is over."""
        minutes = resource.spec.get("previousSecretMinutes", PREVIOUS_DEFAULT_MINUTES)
        notes = []
        for each in user.secrets:
            is_kept = each.number == current.number or (each.number > current.number and is_reported(resource))
            end_ms = max(current.created_at_ms, each.created_at_ms) + minutes * MINUTE_MS
            if not is_kept and self._clock.wall_ms() >= end_ms:
                await self._remove(user.name, each.number)
                notes.append(Note("SecretRemoved", f"Secret {each.number} of user {user.name} is not valid any more."))
        return notes

    async def _remove(self, name: str, number: int) -> None:
        await self.broker.call("SecurityService/RemoveSecret", pb.RemoveSecretRequest(name=name, number=number))


def _secret_name(resource: Resource) -> str | None:
    name = resource.spec.get("secretName")
    return None if name is None else str(name)


def _status(resource: Resource, name: str) -> Mapping[str, Any]:
    """Return what the status says of the Secret of this name; empty if another one, or none, was applied."""
    status: Mapping[str, Any] = resource.status.get("secret") or {}
    return status if status.get("name") == name else {}


def _of(secret: pb.Secret) -> dict[str, int]:
    """Return what the status says of a secret at the broker. A user that was made again has the same numbers again."""
    return {"number": secret.number, "createdAtMs": secret.created_at_ms}


def _is_of(status: Mapping[str, Any], secret: pb.Secret) -> bool:
    return bool(status) and _of(secret).items() <= status.items()
