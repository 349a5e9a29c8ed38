"""The JSON documents in which rows are stored (docs/formats/metadata.md).

Compact, ASCII, keys sorted: a row is always encoded in the same way, and tools without Quarry can read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn

from quarry_mq.store.errors import Invalid, StoreDamaged

FORMAT_VERSION: Final = 1
"""The version stored in every row as `format`. It is raised when a reader of old rows would misread new ones."""

ATTRIBUTES_SIZE_MAX: Final = 4096
"""The largest number of characters of all keys and values of one row: rows and their caches stay small."""


def encode_document(document: dict[str, object]) -> bytes:
    """Return the row's bytes: the document and its format version."""
    return json.dumps({"format": FORMAT_VERSION, **document}, separators=(",", ":"), sort_keys=True).encode()


class Fields:
    """Reads the fields of a row by type. Raises StoreDamaged naming table, row and field."""

    def __init__(self, table: str, name: str, fields: dict[str, object]) -> None:
        self._table = table
        self._name = name
        self._fields = fields

    def damaged(self, reason: str) -> NoReturn:
        raise StoreDamaged(Path("quarry"), f"table {self._table}, row {self._name!r}: {reason}")

    def has(self, field: str) -> bool:
        return field in self._fields

    def integer(self, field: str) -> int:
        value = self._fields.get(field)
        if not isinstance(value, int) or isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not an integer")
        return value

    def number(self, field: str) -> float:
        value = self._fields.get(field)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not a number")
        return float(value)

    def boolean(self, field: str) -> bool:
        value = self._fields.get(field)
        if not isinstance(value, bool):
            self.damaged(f"{field} is {value!r}, not true or false")
        return value

    def text(self, field: str) -> str:
        value = self._fields.get(field)
        if not isinstance(value, str):
            self.damaged(f"{field} is {value!r}, not a text")
        return value

    def integers(self, field: str) -> tuple[int, ...]:
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(type(each) is int for each in value):
            self.damaged(f"{field} is {value!r}, not a list of integers")
        return tuple(value)

    def texts(self, field: str) -> dict[str, str]:
        value = self._fields.get(field)
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            self.damaged(f"{field} is {value!r}, not a map of texts")
        return value

    def text_list(self, field: str) -> list[str]:
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.damaged(f"{field} is {value!r}, not a list of texts")
        return value

    def parts(self, field: str) -> list[Fields]:
        """Return the objects of a list."""
        value = self._fields.get(field)
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.damaged(f"{field} is {value!r}, not a list of objects")
        return [Fields(self._table, self._name, each) for each in value]


class Document(Fields):
    """Decodes a whole row. Raises StoreDamaged."""

    def __init__(self, table: str, name: str, value: bytes) -> None:
        super().__init__(table, name, {})
        try:
            fields = json.loads(value)
        except ValueError as cause:
            self.damaged(f"not JSON: {cause}")
        if not isinstance(fields, dict):
            self.damaged("not a JSON object")
        self._fields = fields
        if self.integer("format") != FORMAT_VERSION:
            self.damaged(f"written in format {fields['format']}; this version reads {FORMAT_VERSION}")


def check_attributes(owner: str, attributes: Mapping[str, str]) -> None:
    """Raise Invalid when a key is empty, or all keys and values together are too long."""
    if "" in attributes:
        raise Invalid(f"{owner}: attributes: a key is empty")
    size = sum(len(key) + len(value) for key, value in attributes.items())
    if size > ATTRIBUTES_SIZE_MAX:
        raise Invalid(f"{owner}: attributes: {size} characters, at most {ATTRIBUTES_SIZE_MAX} are allowed")
