"""The groups of the random workload."""

from __future__ import annotations

from typing import Final

from quarry_mq.server.filters import SqlFilter, TagFilter
from tests.lag.readers import Reader, Taste

ALL: Final = Taste(TagFilter.parse("*"), lambda _: True)
BLUE: Final = Taste(TagFilter.parse("blue || green"), lambda properties: properties.get("TAGS") == "blue")
LARGE: Final = Taste(SqlFilter.parse("n > 3"), lambda properties: int(properties["n"]) > 3)
LIMITED: Final = ("limited", "ordered-limited")


def readers() -> dict[str, Reader]:
    found = (
        Reader("plain", ALL),
        Reader("blue", BLUE),
        Reader("large", LARGE),
        Reader("limited", ALL, attempts_max=2),
        Reader("ordered", ALL, is_ordered=True),
        Reader("ordered-limited", BLUE, is_ordered=True, attempts_max=2),
    )
    return {each.name: each for each in found}
