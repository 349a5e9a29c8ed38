"""Removal of absolute paths from answers.

The paths of files on this machine are for its operators, who read the log; answers name a file within the store.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_STORES: Final[dict[str, re.Pattern[str]]] = {}
"""Patterns by the absolute path of a store: they match that path as a whole name, with a separator after it."""

_PATH: Final = re.compile(r"(?<![\w./:-])/(?:[^\s/:;,'\"()\[\]]+/)+([^\s/:;,'\"()\[\]]*)")
"""An absolute path below at least one folder. Its last name is kept, with that of the folder it lies in."""


def is_store(directory: Path) -> None:
    """Register a store's folder: from now on its path is removed from texts, whatever its name looks like."""
    for place in {directory.absolute(), directory.resolve()}:
        _STORES[str(place)] = re.compile(rf"{re.escape(str(place))}(?:/(?=[^/])|(?![\w./-]))")


def without_places(text: str) -> str:
    """Return the text with absolute paths cut to the last folder and the name, or to the path within a store."""
    if "/" not in text:
        return text
    for pattern in _STORES.values():
        text = pattern.sub(lambda found: "" if found.group().endswith("/") else "the store", text)
    return _PATH.sub(lambda found: "/".join(found.group().rsplit("/", 2)[1:]), text)


def optional_without_places(text: str | None) -> str | None:
    """Return `without_places(text)`, or None for None."""
    return None if text is None else without_places(text)
