"""What a call wants to do with what."""

from __future__ import annotations

from typing import Final, NamedTuple

from store.security.model import Action, ResourceKind

NAME_SHOWN_MAX: Final = 255
"""Characters of a name in errors, which is what names may have: callers write what they like."""


class Access(NamedTuple):
    """One thing that a call does: `action` on the resource `name`, which is no pattern and may be no name at all."""

    kind: ResourceKind
    name: str
    action: Action

    def __str__(self) -> str:
        return f"{self.action.value} on {self.kind.value} {self.name[:NAME_SHOWN_MAX]}"
