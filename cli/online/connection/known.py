"""Reads answers of a broker: fields that may be unset, given as None, and lists that come in pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from quarry_mq.cli.terminal.times import time_text


def known(message: Any, field: str) -> Any:
    """Return the value of a field, or None if it is not set."""
    return getattr(message, field) if message.HasField(field) else None


def known_time(message: Any, field: str) -> str | None:
    """Return the time text of a field in milliseconds since 1970, or None if it is not set."""
    milliseconds = known(message, field)
    return None if milliseconds is None else time_text(milliseconds)


def known_seconds(message: Any, field: str) -> float | None:
    """Return the seconds of a field in milliseconds, or None if it is not set."""
    milliseconds = known(message, field)
    return None if milliseconds is None else milliseconds / 1000


def known_rounded(message: Any, field: str, digits: int = 1) -> float | None:
    value = known(message, field)
    return None if value is None else round(value, digits)


def listed(
    ask: Callable[[Any], Any], request: Any, rows: str, key: Callable[[Any], Any], *, limit: int, page_rows: int
) -> Iterator[Any]:
    """Yield at most `limit` items of the answers' field `rows`, page after page.

    The request is changed: its `after` is set to the `key` of the last item, and its `limit`.
    """
    while limit > 0:
        request.limit = min(limit, page_rows)
        page = ask(request)
        found = getattr(page, rows)
        yield from found
        limit -= len(found)
        if not page.has_more or not found:
            return
        request.after = key(found[-1])
