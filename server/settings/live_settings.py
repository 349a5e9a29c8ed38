"""Change settings while the broker runs: they are validated as all settings, stored in `quarry/`, and override others.

Only fields that are marked as live can be changed (`server.settings.sections.base.LIVE`): numbers, switches and levels.
They are stored as one row, so that all change at once. A value that no longer fits the others at a start, because the
file or the version has changed, is logged and ignored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

import structlog
from pydantic import ByteSize, ValidationError
from pydantic.fields import FieldInfo

from quarry_mq.kv import KeyValueEngine
from quarry_mq.server.errors import NoSuchSetting
from quarry_mq.server.settings.broker_settings import BrokerSettings, SettingsInvalid, in_one_line, setting_fields
from quarry_mq.server.settings.sections import Section
from quarry_mq.store.errors import Invalid
from quarry_mq.store.state.identity import META

log = structlog.get_logger(__name__)

ROW: Final = b"live_settings"
VALUE_SIZE_MAX: Final = 64
"""Most characters of a value, which is a number with its unit or a word."""


class ShownSetting(NamedTuple):
    """Hold one setting with its present value; `configured` is the value that the broker was started with."""

    key: str
    value: str
    source: str
    configured: str
    meaning: str


class LiveSettings:
    """Hold the present settings of one broker. Lives on the event loop's thread."""

    def __init__(self, configured: BrokerSettings, engine: KeyValueEngine) -> None:
        self._configured = configured
        self._engine = engine
        self._family = engine.family(META)
        self._fields = dict(live_fields())
        self._changed: dict[str, str] = {}
        self._callbacks: list[Callable[[BrokerSettings], None]] = []
        self.current = configured
        for texts in _by_section(self._stored()):
            self._take(texts)

    def on_change(self, callback: Callable[[BrokerSettings], None]) -> None:
        """Call `callback` with the settings each time that some have changed."""
        self._callbacks.append(callback)

    def shown(self) -> list[ShownSetting]:
        """Return all settings that can be changed."""
        return [self.show(key) for key in self._fields]

    def show(self, key: str) -> ShownSetting:
        """Return one setting. Raises NoSuchSetting."""
        field = self._field(key)
        return ShownSetting(
            key,
            _text(_value(self.current, key)),
            "live" if key in self._changed else self._configured.source_of(key),
            _text(_value(self._configured, key)),
            field.description or "",
        )

    def set(self, key: str, text: str) -> ShownSetting:
        """Change one setting, durably. Raises NoSuchSetting, SettingsInvalid, or kv.EngineFull."""
        self._field(key)
        if len(text) > VALUE_SIZE_MAX:
            raise SettingsInvalid(f"{key}: a value has at most {VALUE_SIZE_MAX} characters")
        self._change(key, {**self._changed, key: text})
        log.info("setting changed", key=key, value=text)
        return self.show(key)

    def reset(self, key: str) -> ShownSetting:
        """Restore the value that the broker was started with. Raises as `set` does: other changes may depend on it."""
        self._field(key)
        self._change(key, {other: text for other, text in self._changed.items() if other != key})
        log.info("setting reset", key=key)
        return self.show(key)

    def _take(self, texts: Mapping[str, str]) -> None:
        """Apply the stored values of one section; values that are no longer valid are ignored."""
        try:
            self.current = _with(self.current, texts)
        except Invalid as cause:
            if len(texts) > 1:
                for key, text in texts.items():
                    self._take({key: text})
            else:
                log.warning("a setting that was changed while the broker ran is left alone", cause=str(cause))
        else:
            self._changed.update(texts)

    def _change(self, key: str, changed: dict[str, str]) -> None:
        of_section = {other: text for other, text in changed.items() if _section(other) == _section(key)}
        untouched = self._configured.model_copy(
            update={name: getattr(self.current, name) for name in BrokerSettings.model_fields if name != _section(key)}
        )
        current = _with(untouched, of_section) if of_section else untouched
        batch = self._engine.batch()
        batch.put(self._family, ROW, json.dumps(changed, sort_keys=True).encode())
        self._engine.write(batch, sync=True)
        self.current, self._changed = current, changed
        for callback in self._callbacks:
            callback(current)

    def _field(self, key: str) -> FieldInfo:
        field = self._fields.get(key)
        if field is None:
            raise NoSuchSetting(f"{key[:VALUE_SIZE_MAX]}: no setting that can be changed while the broker runs")
        return field

    def _stored(self) -> Mapping[str, str]:
        row = self._family.get(ROW)
        if row is None:
            return {}
        try:
            found = json.loads(row)
        except ValueError:
            log.warning("what was changed while the broker ran cannot be read, and is left alone")
            return {}
        return {key: text for key, text in found.items() if key in self._fields}


def live_fields() -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields that can be changed, each with its key."""
    for key, field in setting_fields():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("live"):
            yield key, field


def _with(settings: BrokerSettings, texts: Mapping[str, str]) -> BrokerSettings:
    """Return the settings with other values of one section. Raises SettingsInvalid."""
    (name,) = {_section(key) for key in texts}
    section: Section = getattr(settings, name)
    values = {**section.model_dump(), **{key.partition(".")[2]: text for key, text in texts.items()}}
    try:
        changed = settings.model_copy(update={name: type(section).model_validate(values)})
        changed.for_expiry()
    except ValidationError as cause:
        raise SettingsInvalid(in_one_line(cause, name)) from cause
    except Invalid as cause:
        raise SettingsInvalid(str(cause)) from cause
    return changed


def _by_section(texts: Mapping[str, str]) -> list[dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for key, text in texts.items():
        sections.setdefault(_section(key), {})[key] = text
    return list(sections.values())


def _section(key: str) -> str:
    return key.partition(".")[0]


def _value(settings: BrokerSettings, key: str) -> object:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def _text(value: object) -> str:
    """Return a value as text that `set` accepts."""
    match value:
        case bool():
            return str(value).lower()
        case ByteSize():
            return _size_text(value)
        case Enum():
            return str(value.value)
        case _:
            return str(value)


def _size_text(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)
