"""Where files lie on this machine is for its operators, who read the log; answers name a file within the store."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_STORES: Final[dict[str, re.Pattern[str]]] = {}
"""By the absolute path of the folder: where it stands in a text as a whole name, and what follows it of a path."""

_PATH: Final = re.compile(r"(?<![\w./:-])/(?:[^\s/:;,'\"()\[\]]+/)+([^\s/:;,'\"()\[\]]*)")
"""An absolute path below at least one folder. Its last name is kept, with the folder's that it lies in."""


def is_store(directory: Path) -> None:
    """From now on texts are without this folder, whatever its name looks like."""
    for place in {directory.absolute(), directory.resolve()}:
        _STORES[str(place)] = re.compile(rf"{re.escape(str(place))}(?:/(?=[^/])|(?![\w./-]))")


def without_places(text: str) -> str:
    """The text with absolute paths cut to the last folder and the name; within a store, to the path within it."""
    if "/" not in text:
        return text
    for pattern in _STORES.values():
        text = pattern.sub(lambda found: "" if found.group().endswith("/") else "the store", text)
    return _PATH.sub(lambda found: "/".join(found.group().rsplit("/", 2)[1:]), text)


def optional_without_places(text: str | None) -> str | None:
    """The same of what may be None."""
    return None if text is None else without_places(text)
