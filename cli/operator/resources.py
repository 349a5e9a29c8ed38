"""The custom resources of the operator: kinds, what a resource says, and the status that the operator writes.

The schemas are in `deploy/helm/quarry/crds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

GROUP: Final = "mq.quarry.io"
"""The API group of all kinds."""

VERSION: Final = "v1alpha1"
FINALIZER: Final = f"{GROUP}/delete"
"""Keeps a resource until what it declares is deleted at the broker."""

DELETE_MESSAGES: Final = f"{GROUP}/delete-messages"
"""Annotation of a topic: with `true` it may be deleted with messages that are not consumed."""

BREAK_ORDER: Final = f"{GROUP}/break-order"
"""Annotation of a topic: with `true` the number of queues may change while ordered messages are unread."""

READY: Final = "Ready"
DRIFTED: Final = "Drifted"
MESSAGE_MAX: Final = 1_000
"""Characters of a condition's message, and bytes of an event's note, that Kubernetes accepts and people read."""


class Kind(NamedTuple):
    """A kind of custom resources."""

    name: str
    plural: str


TOPIC: Final = Kind("Topic", "topics")
CONSUMER_GROUP: Final = Kind("ConsumerGroup", "consumergroups")
USER: Final = Kind("User", "users")
ACCESS_RULE: Final = Kind("AccessRule", "accessrules")
SHARD_SET: Final = Kind("ShardSet", "shardsets")
MIGRATION: Final = Kind("Migration", "migrations")


@dataclass(frozen=True, slots=True)
class Resource:
    """A custom resource as Kubernetes has it."""

    kind: Kind
    raw: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.raw["metadata"]["uid"])

    @property
    def version(self) -> str:
        """Return the resource version: Kubernetes refuses a change of an older one."""
        return str(self.raw["metadata"]["resourceVersion"])

    @property
    def generation(self) -> int:
        return int(self.raw["metadata"]["generation"])

    @property
    def created_at(self) -> str:
        """Return the time of its creation, in a form whose order is that of time."""
        return str(self.raw["metadata"]["creationTimestamp"])

    @property
    def is_being_deleted(self) -> bool:
        return "deletionTimestamp" in self.raw["metadata"]

    @property
    def finalizers(self) -> Sequence[str]:
        return self.raw["metadata"].get("finalizers") or ()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.raw["metadata"].get("annotations") or {}

    @property
    def spec(self) -> Mapping[str, Any]:
        return self.raw.get("spec") or {}

    @property
    def status(self) -> Mapping[str, Any]:
        return self.raw.get("status") or {}

    def is_annotated(self, annotation: str) -> bool:
        return self.annotations.get(annotation) == "true"

    def condition(self, kind: str) -> Mapping[str, Any]:
        """Return the condition of this type in the status, empty without one."""
        conditions: Sequence[Mapping[str, Any]] = self.status.get("conditions") or ()
        return next((each for each in conditions if each["type"] == kind), {})


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of a status. `is_true` is None where it is unknown."""

    type: str
    is_true: bool | None
    reason: str
    """The reason is one word in camel case."""
    message: str
    is_awaited: bool = False
    """True if the condition becomes true in time, so that nobody has to look at it before."""

    @property
    def status(self) -> str:
        return "Unknown" if self.is_true is None else str(self.is_true)

    @property
    def is_problem(self) -> bool:
        """Return whether people have to look at the resource. What is unknown is a matter of the whole release."""
        return self.is_true is (self.type == DRIFTED) and not self.is_awaited


class Note(NamedTuple):
    """An event about a resource: what was done, or a problem."""

    reason: str
    message: str
    is_warning: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """An outcome is what a reconciler found and did."""

    conditions: Sequence[Condition] = ()
    """The conditions that are now valid; others stay as they are. None at all: the status is not written."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the status; others stay as they are."""
    notes: Sequence[Note] = ()
    """Events about what was done."""
    is_settled: bool = True
    """False if the next look should come sooner than the next sweep over all resources."""
    again_s: float | None = None
    """Seconds until the next look at something that changes by itself. None: until the next sweep."""


def new_problems(resource: Resource, conditions: Sequence[Condition]) -> list[Note]:
    """Return an event for each condition that has become a problem, or is one for another reason than before."""
    found: dict[str, Note] = {}  # by the message: two conditions may tell the same
    for each in conditions:
        before = resource.condition(each.type)
        if each.is_problem and (before.get("status"), before.get("reason")) != (each.status, each.reason):
            found.setdefault(each.message, Note(each.reason, each.message, is_warning=True))
    return list(found.values())


def status_change(resource: Resource, outcome: Outcome, now: datetime) -> dict[str, Any] | None:
    """Return the merge patch that brings the status to the outcome; None if it says the same already."""
    conditions = {each["type"]: each for each in resource.status.get("conditions") or ()}
    for each in outcome.conditions:
        conditions[each.type] = _written(each, conditions.get(each.type, {}), resource.generation, now)
    status = {"observedGeneration": resource.generation, "conditions": list(conditions.values()), **outcome.fields}
    change = _merge_patch(resource.status, status)
    return {"status": change} if change else None


def _written(condition: Condition, before: Mapping[str, Any], generation: int, now: datetime) -> dict[str, Any]:
    is_same = before.get("status") == condition.status
    moment = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message[:MESSAGE_MAX],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if is_same else moment,
    }


def _merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what sets the fields of `after`. In maps below them, what is not in `after` is removed."""
    change: dict[str, Any] = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            inner = {**_merge_patch(old, value), **dict.fromkeys(old.keys() - value.keys())}
            if inner:
                change[name] = inner
        elif value != old:
            change[name] = value
    return change
