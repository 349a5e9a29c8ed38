"""What a call wants to do with what."""

from __future__ import annotations

from typing import NamedTuple

from store.security.model import Action, ResourceKind


class Access(NamedTuple):
    """One thing that a call does: `action` on the resource `name`, which is no pattern."""

    kind: ResourceKind
    name: str
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} on {self.kind.value} {self.name}"
