"""The rules that all declared things share: adoption, drift and deletion.

A resource declares some settings of one thing at the broker. Settings that it does not name stay as the broker has
them. The status keeps the settings that were applied last. With them a change of the declaration, which is always
applied, differs from a change at the broker, which is drift.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from quarry_mq.cli.operator.broker import Broker, BrokerAway, CallRefused
from quarry_mq.cli.operator.kubernetes import Kubernetes
from quarry_mq.cli.operator.resources import DRIFTED, FINALIZER, READY, Condition, Kind, Note, Outcome, Resource

ATTRIBUTE: Final = "attributes."
"""Prefix of the settings that are attributes: an attribute that is no longer declared is removed."""

CHANGED: Final = "ChangedAtBroker"
"""Reason of the condition Drifted while there is drift."""

CORRECTED: Final = "Corrected"
"""Reason of the condition Drifted after drift was put right."""

Settings = Mapping[str, Any]
"""Values by the name of the setting. None stands for a setting that is not there, or is to be removed."""


class Found(NamedTuple):
    """A thing at the broker: its settings, and the broker's answer itself."""

    settings: Settings
    answer: Any


class Waiting(Exception):
    """The thing cannot be brought to its declaration now. The reason is one word, and the text says what to do."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class DriftReported(Exception):
    """Somebody changed the thing at the broker, and that is only told. The text says what."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference has the settings that differ: for each the value at the broker and the declared one."""

    values: Mapping[str, tuple[Any, Any]]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {_shown(now)} at the broker, {_shown(then)} declared" for name, (now, then) in self.values.items()
        )

    def __bool__(self) -> bool:
        return bool(self.values)

    @property
    def declared(self) -> Settings:
        return {name: then for name, (_, then) in self.values.items()}

    def of(self, names: Collection[str]) -> Difference:
        return Difference({name: pair for name, pair in self.values.items() if name in names})

    def without(self, names: Collection[str]) -> Difference:
        return Difference({name: pair for name, pair in self.values.items() if name not in names})


def difference(declared: Settings, applied: Settings, found: Settings) -> Difference:
    """Compare a declaration with the broker. Attributes that were applied and are no longer declared are to go."""
    dropped = {name: None for name in applied if name.startswith(ATTRIBUTE) and name not in declared}
    wanted = {**declared, **dropped}
    return Difference({name: (found.get(name), then) for name, then in wanted.items() if found.get(name) != then})


def drifted(declared: Settings, applied: Settings, differing: Difference) -> Difference:
    """Return the part of a difference that somebody made at the broker: it was applied as it is declared."""
    return differing.of({name for name in differing.values if name in applied and applied[name] == declared.get(name)})


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


class DeclaredReconciler(ABC):
    """Brings the thing of each resource of one kind to its declaration."""

    kind: Kind
    noun: str
    """The word for the thing in messages."""
    deletion_policy_default = "Retain"

    def __init__(self, broker: Broker, kubernetes: Kubernetes) -> None:
        self.broker = broker
        self.kubernetes = kubernetes

    @abstractmethod
    def thing(self, resource: Resource) -> str:
        """Return the name of what the resource declares. It is called for any resource, and must not fail."""

    @abstractmethod
    def declared(self, resource: Resource) -> Settings:
        """Return the declared settings as the broker writes them. Raises CallRefused for one that it would refuse."""

    @abstractmethod
    async def find(self, resource: Resource) -> Found | None:
        """Return the thing as it is at the broker, or None."""

    @abstractmethod
    async def create(self, resource: Resource, settings: Settings) -> None: ...

    @abstractmethod
    async def change(self, resource: Resource, found: Found, changes: Settings) -> None: ...

    @abstractmethod
    async def delete(self, resource: Resource) -> None:
        """Delete the thing at the broker. Raises Waiting if that would lose something."""

    def unknown(self, resource: Resource, found: Found) -> str:
        """Return what cannot be compared of a thing that exists already; the empty text if all can be."""
        del resource, found
        return ""

    async def complete(self, resource: Resource) -> Outcome:
        """Do what else belongs to a thing whose settings are as declared. Returns fields and notes."""
        del resource
        return Outcome()

    async def reconcile(self, resource: Resource, rivals: Collection[Resource]) -> Outcome:
        """Look at one resource. `rivals` are all that declare the same thing, itself included."""
        try:
            if resource.is_being_deleted:
                return await self._end(resource)
            return await self._bring(resource, rivals)
        except BrokerAway as error:
            return _not_ready("BrokerUnavailable", str(error), is_true=None)
        except CallRefused as error:
            return _not_ready("Refused", str(error))
        except Waiting as error:
            return _not_ready(error.reason, str(error))
        except DriftReported as error:
            return Outcome(conditions=_drifted_conditions(str(error)))

    async def _end(self, resource: Resource) -> Outcome:
        """Delete the thing of a resource that is being deleted, if the resource says so, then let it go."""
        if FINALIZER not in resource.finalizers:
            return Outcome()
        notes = []
        if self._is_deleted_with(resource):
            await self.delete(resource)
            notes.append(Note("Deleted", f"The {self.noun} {self.thing(resource)} is deleted at the broker."))
        await self.kubernetes.set_finalizer(resource, wanted=False)
        return Outcome(notes=notes)

    async def _bring(self, resource: Resource, rivals: Collection[Resource]) -> Outcome:
        thing, first = self.thing(resource), min(rivals, key=_precedence)
        if first.uid != resource.uid:
            text = f"{self.kind.name} {first.name} declares the {self.noun} {thing} already: delete one of the two"
            raise Waiting("DeclaredTwice", text)
        declared = self.declared(resource)
        found = await self.find(resource)
        if found is None and _was_ready(resource) and is_reported(resource):
            raise DriftReported(f"the {self.noun} {thing} was deleted at the broker")
        if found is None:
            return await self._created(resource, declared)
        return await self._compared(resource, found, declared)

    async def _created(self, resource: Resource, declared: Settings) -> Outcome:
        is_drift = _was_ready(resource)
        resource = await self._with_finalizer(resource)
        # if the operator ends before the status has the settings, the thing is known as made for this resource
        resource = await self.kubernetes.write_status(resource, {"status": {"applied": {}}})
        try:
            await self.create(resource, declared)
        except CallRefused:
            if not is_drift:
                await self._let_go(resource)
            raise
        more = await self.complete(resource)
        text = f"The {self.noun} {self.thing(resource)} is created{' again' if is_drift else ''} at the broker."
        drift = Condition(DRIFTED, False, CORRECTED, "created again after a deletion at the broker")
        return self._ready(resource, declared, drift if is_drift else _no_drift(), more, Note("Created", text))

    async def _compared(self, resource: Resource, found: Found, declared: Settings) -> Outcome:
        is_new, applied = "applied" not in resource.status, resource.status.get("applied") or {}
        differing = difference(declared, applied, found.settings)
        reason = str(differing) or self.unknown(resource, found)
        if is_new and reason and not resource.spec.get("adopt"):
            text = f"the {self.noun} {self.thing(resource)} exists already: {reason}; spec.adopt: true takes it over"
            raise Waiting("AlreadyExists", text)
        drift = Difference({}) if is_new else drifted(declared, applied, differing)
        is_told = bool(drift) and is_reported(resource)
        changes = differing.without(drift.values) if is_told else differing
        resource = await self._with_finalizer(resource)
        if changes:
            await self.change(resource, found, changes.declared)
        more = await self.complete(resource)
        notes = []
        if changes:
            reason = "Adopted" if is_new else CORRECTED if drift and not is_told else "Changed"
            notes.append(Note(reason, f"The {self.noun} {self.thing(resource)} is changed at the broker: {changes}."))
        condition = Condition(DRIFTED, False, CORRECTED, f"put right: {drift}") if drift else _no_drift(resource)
        outcome = self._ready(resource, declared, condition, more, *notes)
        if not is_told:
            return outcome
        text = f"changed at the broker: {drift}"
        return replace(outcome, conditions=_drifted_conditions(text))

    def _ready(self, resource: Resource, declared: Settings, drift: Condition, more: Outcome, *notes: Note) -> Outcome:
        text = f"the {self.noun} {self.thing(resource)} is as declared"
        return Outcome(
            conditions=[Condition(READY, True, "AsDeclared", text), drift],
            fields={"applied": dict(declared), **more.fields},
            notes=[*notes, *more.notes],
        )

    async def _with_finalizer(self, resource: Resource) -> Resource:
        """Keep the resource until its thing is deleted, or not, before the thing is made or changed."""
        return await self.kubernetes.set_finalizer(resource, wanted=self._is_deleted_with(resource))

    async def _let_go(self, resource: Resource) -> None:
        """Undo `_with_finalizer` for a thing that was not made: one of this name that others make is theirs."""
        resource = await self.kubernetes.write_status(resource, {"status": {"applied": None}})
        await self.kubernetes.set_finalizer(resource, wanted=False)

    def _is_deleted_with(self, resource: Resource) -> bool:
        return bool(resource.spec.get("deletionPolicy", self.deletion_policy_default) == "Delete")


def is_reported(resource: Resource) -> bool:
    """Return whether changes at the broker are only told."""
    return bool(resource.spec.get("driftPolicy") == "Report")


def _was_ready(resource: Resource) -> bool:
    """Return whether the broker once had the thing as declared: the condition was never written before."""
    return bool(resource.condition(DRIFTED))


def _precedence(resource: Resource) -> tuple[bool, str, str]:
    """Return the order in which resources may declare the same thing: who has it first, then the oldest."""
    return "applied" not in resource.status, resource.created_at, resource.uid


def _not_ready(reason: str, text: str, *, is_true: bool | None = False) -> Outcome:
    return Outcome(conditions=[Condition(READY, is_true, reason, text)], is_settled=False)


def _drifted_conditions(text: str) -> list[Condition]:
    return [Condition(READY, False, DRIFTED, text), Condition(DRIFTED, True, CHANGED, text)]


def _no_drift(resource: Resource | None = None) -> Condition:
    """Return the condition without drift. What was corrected last stays there to be read."""
    before = {} if resource is None else resource.condition(DRIFTED)
    if before.get("reason") == CORRECTED:
        return Condition(DRIFTED, False, CORRECTED, before["message"])
    return Condition(DRIFTED, False, "AsApplied", "nobody has changed it at the broker")
