"""Whether the settings that a document shows exist, with values that they may have."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any, Final

from pydantic import BaseModel

from cli.contexts import _KEYS as CONTEXT_KEYS
from server.settings import BrokerSettings

SECTIONS: Final = BrokerSettings.model_fields


def unknown(text: str) -> list[str]:
    """Keys that neither a broker nor a context has; those without a section may be of any. Raises TOMLDecodeError."""
    return list(_unknown(tomllib.loads(text)))


def exists(name: str) -> bool:
    """Whether `section.key` is a setting."""
    section, _, key = name.partition(".")
    return section in SECTIONS and key in _keys(section)


def _keys(section: str) -> dict[str, Any]:
    model = SECTIONS[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return dict(model.model_fields)


def _unknown(tables: dict[str, Any]) -> Iterator[str]:
    for name, value in tables.items():
        if not isinstance(value, dict):
            if not any(name in _keys(section) for section in SECTIONS):
                yield name
        elif name in SECTIONS:
            yield from (f"{name}.{key}" for key in value if key not in _keys(name))
        else:
            yield from (f"{name}.{key}" for key in value if key not in CONTEXT_KEYS)
