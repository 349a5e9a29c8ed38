"""Checks that the settings in a document exist, with values that they may have."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from quarry_mq.server.settings.broker_settings import BrokerSettings, in_one_line

SECTIONS: Final = BrokerSettings.model_fields


def mistake(text: str) -> str | None:
    """Return the error of a broker with this file; None if it would start. Raises TOMLDecodeError."""
    return mistake_in(tomllib.loads(text))


def mistake_in(sections: Mapping[str, Any]) -> str | None:
    """Return the error of a broker with these settings, by section."""
    try:
        BrokerSettings.model_validate(sections)
    except ValidationError as error:
        return in_one_line(error)
    return None


def exists(name: str) -> bool:
    """Return whether `section.key` is a setting."""
    section, _, key = name.partition(".")
    return section in SECTIONS and key in _keys(section)


def _keys(section: str) -> dict[str, Any]:
    model = SECTIONS[section].annotation
    assert isinstance(model, type)
    assert issubclass(model, BaseModel)
    return dict(model.model_fields)
