"""`docs/settings.md` says what `server/settings/sections` says: every key, default and meaning, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from pydantic import ByteSize

from quarry_mq.server.settings.broker_settings import setting_fields
from quarry_mq.server.settings.live_settings import live_fields
from tests.house.source import name, production_files, tree

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


def shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return f"`{str(value).lower()}`"
        case ByteSize():
            return f"`{value.human_readable()}`".replace(".0", "")
        case Enum():
            return f"`{value.value}`"
        case _:
            return f"`{value}`"


def rows() -> Iterator[tuple[str, str, str]]:
    changeable = dict(live_fields())
    for key, field in setting_fields():
        assert field.description, f"{key} has no description"
        live = ", live" if key in changeable else ""
        yield key, shown(field.default) + live, field.description


def documented() -> list[tuple[str, str, str]]:
    cells = re.findall(r"^\| `([a-z_.]+)` \| (.+?) \| (.+) \|$", DOCS.read_text(), flags=re.MULTILINE)
    return [(key, default, meaning) for key, default, meaning in cells]


def test_the_settings_page_agrees_with_the_code() -> None:
    assert documented() == list(rows())


def test_every_setting_is_read_somewhere() -> None:
    """A setting that nothing reads is a promise that nothing keeps."""
    used = {
        node.attr
        for path in production_files()
        if name(path).startswith("server/")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
    }
    assert {key for key, _, _ in rows() if key.partition(".")[2] not in used} == set()
