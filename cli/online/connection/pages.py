"""Lists that a broker gives a page at a time, to go on behind the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def listed(
    ask: Callable[[Any], Any], request: Any, rows: str, key: Callable[[Any], Any], *, limit: int, page_rows: int
) -> Iterator[Any]:
    """At most `limit` of the field `rows` of the answers, page after page, as they are printed.

    The request is changed: it has `limit` and `after`, which is the `key` of the last one that came.
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
