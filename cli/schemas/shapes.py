"""Converts the shapes of `shapes.toml` to JSON Schema, and to the page docs/json.md."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final[Mapping[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "time": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
    "any": {},
}
_WORDS: Final = re.compile(r"[a-z][a-z -]*(\|[a-z][a-z -]*)*")
Fields = Mapping[str, str]
"""Maps field names to types as spelled in the file."""


@cache
def _read() -> Mapping[str, Any]:
    return tomllib.loads((files(__package__) / "shapes.toml").read_text(encoding="utf-8"))


def commands() -> Mapping[str, Sequence[str]]:
    """Return the shapes of each command's lines."""
    found: Mapping[str, Sequence[str]] = _read()["commands"]
    return found


def own_name(command: str) -> str:
    """Return the command under its main name, without aliases."""
    family, space, rest = command.partition(" ")
    return f"{_read()['aliases'].get(family, family)}{space}{rest}"


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of one line that the command prints. Raises KeyError for a command without a schema."""
    shapes = [_schema(name) for name in commands()[own_name(command)]]
    head = {"$schema": DRAFT, "title": f"quarry {command} --json", "description": "One line, which is one object."}
    return head | (shapes[0] if len(shapes) == 1 else {"anyOf": shapes})


def fields_of(shape: str) -> Fields:
    """Return all fields of a shape, including those of the shape that it extends."""
    own = dict(_read()["shapes"][shape])
    base = own.pop("*", None)
    return {**(fields_of(base) if base else {}), **own}


def _schema(name: str) -> dict[str, Any]:
    """Return the schema of a type as the file spells it. Raises KeyError for an unknown type."""
    if name.endswith("?"):
        return {"anyOf": [_schema(name[:-1]), {"type": "null"}]}
    if name.startswith("["):
        return {"type": "array", "items": _schema(name[1:-1])}
    if name.startswith("{"):
        return {"type": "object", "additionalProperties": _schema(name[1:-1])}
    if name in _PLAIN:
        return dict(_PLAIN[name])
    if name in _read()["shapes"]:
        fields = fields_of(name)
        return {
            "type": "object",
            "properties": {field.removesuffix("?"): _schema(kind) for field, kind in fields.items()},
            "required": [field for field in fields if not field.endswith("?")],
            "additionalProperties": False,
        }
    if _WORDS.fullmatch(name) and ("|" in name or name in ("gzip", "super")):
        return {"enum": name.split("|")}
    raise KeyError(f"shapes.toml: no type {name!r}")


def page() -> Iterator[str]:
    """Yield the lines of docs/json.md."""
    yield from (
        "# JSON",
        "",
        "<!-- made of cli/schemas/shapes.toml by `quarry schema --page`; tests hold it to that -->",
        "",
        "With `--json` a command prints one object per line. `quarry schema COMMAND` prints the JSON Schema of such a",
        "line. A command prints no field that is not in its schema. Within a minor version fields keep their name and",
        "meaning, and new fields may be added.",
        "",
        "A type that ends in `?` may be null: the value is unknown, or does not exist. A field whose name ends in `?`",
        "may be missing. A `time` is UTC to the second (`2026-11-21T14:30:00Z`). `[…]` is a list. `{…}` is an object",
        "whose keys are names. The name of another shape is a link to its fields.",
        "",
        "| command | a line is |",
        "|---|---|",
    )
    for command, shapes in commands().items():
        yield f"| `quarry {command}` | {' or '.join(map(_linked, shapes))} |"
    for shape in _read()["shapes"]:
        yield from ("", f"## {shape}", "", "| field | type |", "|---|---|")
        for field, kind in fields_of(shape).items():
            yield f"| `{field}` | {_linked(kind)} |"


def _linked(kind: str) -> str:
    bare = kind.strip("[]{}?")
    if bare in _read()["shapes"]:
        before, _, after = kind.partition(bare)
        return f"{before}[{bare}](#{bare}){after}"
    return "`" + kind.replace("|", "\\|") + "`"
