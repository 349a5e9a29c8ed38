"""What the supervisor is told when it begins: one text, since it is a program that starts anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, Self

SHARDS_MAX: Final = 100
"""What is told is one argument of a program, which has its limits; so have the ports of a machine."""


@dataclass(frozen=True, slots=True)
class Child:
    """One broker."""

    name: str
    variables: Mapping[str, str]
    """Its settings that are not those of the others, put over the supervisor's own environment."""
    listening: Sequence[str] = ()
    """`host:port` of its ports that stay open while it is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a supervisor needs to know. No secret is among it: who lists processes may see it."""

    command: Sequence[str]
    """Starts one broker."""
    children: Sequence[Child]
    log_format: Literal["auto", "json", "console"]
    log_level: str

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(children=[Child(**each) for each in values.pop("children")], **values)
