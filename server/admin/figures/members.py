"""Collect the overviews of all members of a cluster: each member is asked for its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from quarry_mq.server.cluster.membership.members import Members, SeenMember
from quarry_mq.server.errors import MemberUnreachable, NotAMember
from quarry_mq.store.errors import Invalid

TIMEOUT_S: Final = 2.0

Ask = Callable[[str], Awaitable[bytes]]
"""Ask the member of this name for its serialized overview. Raises MemberUnreachable, NotAMember, Invalid."""


class Answered(NamedTuple):
    """A member's overview, or the reason why there is none; both are empty for the broker that asks."""

    seen: SeenMember
    overview: bytes | None = None
    problem: str = ""


class OverviewsOfMembers:
    """Asks all known members, reachable or not, so that one that has just come back is seen at once."""

    def __init__(self, members: Members, ask: Ask, timeout_s: float = TIMEOUT_S) -> None:
        self._members = members
        self._ask = ask
        self._timeout_s = timeout_s

    async def all(self) -> list[Answered]:
        """Return the answers of all members by name."""
        return list(await asyncio.gather(*[self._answer(each) for each in self._members.all()]))

    async def _answer(self, seen: SeenMember) -> Answered:
        if seen.is_self:
            return Answered(seen)
        try:
            async with asyncio.timeout(self._timeout_s):
                return Answered(seen, await self._ask(seen.member.name))
        except TimeoutError:
            return Answered(seen, problem=f"no answer within {self._timeout_s:g} s")
        except (MemberUnreachable, NotAMember, Invalid) as error:
            return Answered(seen, problem=str(error))
