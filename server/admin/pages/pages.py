"""What pages of topics and groups have in common: which names are on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from quarry_mq.server.admin.pages.names import NamePage, NameSearch
from quarry_mq.server.lag.consumer_lag import PairLag
from quarry_mq.server.tasks.pacing import Pace
from quarry_mq.store.errors import Invalid

LIMIT_DEFAULT: Final = 50
LIMIT_MAX: Final = 500


class Order(Enum):
    """Of a page."""

    NAME = "name"
    BUSIEST = "busiest"
    """Messages per second, the most first."""
    LAG = "lag"
    """How long the oldest message waits, the longest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """Which page. `contains` is a part of names in any case of letters; `after` goes with the order by name."""

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
    pace: Pace,
    *,
    weights: Callable[[], dict[str, float]],
    is_there: Callable[[str], bool],
) -> NamePage:
    """`weights` are those of the names that have one in the order that is wanted; heavy ones come first."""
    page = await search.page(wanted.contains, wanted.after, wanted.limit, pace)
    if wanted.order is Order.NAME:
        return page
    weighed = weights()
    part = wanted.contains.lower()
    names = [name for name in weighed if part in name.lower() and is_there(name)]
    names.sort(key=lambda name: (-weighed[name], name))
    return NamePage(names[: wanted.limit], len(names) > wanted.limit, page.matching)


def longest_lag(pairs: Iterable[PairLag], name_of: Callable[[PairLag], str]) -> dict[str, float]:
    """By name the lag of the one that is furthest behind; what is not known does not count."""
    longest: dict[str, float] = {}
    for each in pairs:
        if each.lag_ms is not None:
            longest[name_of(each)] = max(longest.get(name_of(each), 0), each.lag_ms)
    return longest
