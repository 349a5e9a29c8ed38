"""RocketMQ's JSON text is JSON, except that integer keys of maps have no quotes (`{0:12,1:9}`).

Some releases quote them, so both are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|([{,]\s*)(-?[0-9]+)(?=\s*:)', re.DOTALL | re.ASCII)
"""The pattern matches a string, or a bare integer key with what stands before it.

A string's closing quote is optional: if it were required, text with a lost quote would be searched again from every
later quote. Strings are matched first, so nothing inside one is taken for a key.
"""


class NotJson(ValueError):
    """The text is neither JSON nor RocketMQ's form of it; the message says where it breaks."""


def parse_json(text: bytes) -> dict[str, Any]:
    """Return the object that the text holds, with integer keys as text. Raises NotJson, also if it is no object."""
    try:
        value = _load(text.decode())
    except (ValueError, RecursionError) as cause:
        raise NotJson(str(cause)) from cause
    if not isinstance(value, dict):
        raise NotJson("the text is not a JSON object")
    return value


def _load(text: str) -> object:
    try:
        return json.loads(text, strict=False)  # most files have no integer keys, and quoting costs ten times this
    except json.JSONDecodeError:
        return json.loads(quote_integer_keys(text), strict=False)


def quote_integer_keys(text: str) -> str:
    """Return the text with its bare integer keys in quotes; nothing else changes. Linear in its length."""
    return _TOKEN.sub(_quoted, text)


def _quoted(token: re.Match[str]) -> str:
    before, key = token.groups()
    return token[0] if key is None else f'{before}"{key}"'


def format_json(value: object) -> str:
    """Return a document as RocketMQ writes its files: one tab per level, keys that are integers without quotes."""
    return _formatted(value, "\n")


def _formatted(value: object, line: str) -> str:
    inner = line + "\t"
    if isinstance(value, Mapping) and value:
        members = [
            f"{inner}{key if isinstance(key, int) else _text(key)}:{_formatted(member, inner)}"
            for key, member in value.items()
        ]
        return "{" + ",".join(members) + line + "}"
    if isinstance(value, list | tuple) and value:
        return "[" + ",".join(inner + _formatted(member, inner) for member in value) + line + "]"
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
