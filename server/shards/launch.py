"""Encode what the supervisor needs to know as one text, since it is a new program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal, Self

SHARDS_MAX: Final = 100
"""Most shards: the text is one argument of a program, whose size is limited, as are the ports of a machine."""


@dataclass(frozen=True, slots=True)
class Child:
    """Describe one broker that the supervisor runs."""

    name: str
    variables: Mapping[str, str]
    """Environment variables with the broker's own settings, put over the supervisor's own environment."""
    listening: Sequence[str] = ()
    """Ports, as `host:port`, that stay open while the broker is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a supervisor needs to know. It holds no secret, since lists of processes show it."""

    command: Sequence[str]
    """The command that starts one broker."""
    children: Sequence[Child]
    log_format: Literal["auto", "json", "console"]
    log_level: str

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(children=[Child(**each) for each in values.pop("children")], **values)
