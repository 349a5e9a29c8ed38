"""The common part of pages of topics and groups: which names are on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quarry_mq.server.admin.pages.names import NamePage, NameSearch
from quarry_mq.server.lag.consumer_lag import PairLag
from quarry_mq.server.tasks.time_slice import TimeSlice
from quarry_mq.store.errors import Invalid

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500


class Order(Enum):
    """The order of a page."""

    NAME = "name"
    BUSIEST = "busiest"
    """Messages per second, the most first."""
    LAG = "lag"
    """The age of the oldest message that is not consumed, the longest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The page that is requested. `contains` is a part of names in any case; `after` needs the order by name."""

    contains: str = ""
    after: str = ""
    limit: int = LIMIT_DEFAULT
    order: Order = Order.NAME

    def __post_init__(self) -> None:
        if self.after and self.order is not Order.NAME:
            raise Invalid("after: goes with the order by name alone")


async def names_of(
    wanted: Wanted,
    search: NameSearch,
    time_slice: TimeSlice,
    *,
    weights: Callable[[], dict[str, float]],
    is_there: Callable[[str], bool],
) -> NamePage:
    """Return the names of a page. `weights` are those of the names that have one in this order, heavy ones first."""
    page = await search.page(wanted.contains, wanted.after, wanted.limit, time_slice)
    if wanted.order is Order.NAME:
        return page
    weighed = weights()
    part = wanted.contains.lower()
    names = [name for name in weighed if part in name.lower() and is_there(name)]
    names.sort(key=lambda name: (-weighed[name], name))
    return NamePage(names[: wanted.limit], len(names) > wanted.limit, page.matching)


def longest_lag(pairs: Iterable[PairLag], name_of: Callable[[PairLag], str]) -> dict[str, float]:
    """Return the longest lag for each name. Pairs whose lag is not known do not count."""
    longest: dict[str, float] = {}
    for each in pairs:
        if each.lag_ms is not None:
            longest[name_of(each)] = max(longest.get(name_of(each), 0), each.lag_ms)
    return longest
