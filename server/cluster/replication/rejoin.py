"""Rejoins a cluster after an absence that was longer than deletions are kept.

The member takes all replicated rows from another one, whose rows count. Of the rows that only this one has, those that
the other one once knew were deleted there, so they are deleted here. The rest was created here meanwhile, and is
announced to the others like any change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from quarry_mq.server.cluster.replication.exchange import Exchange
from quarry_mq.store.errors import Forbidden
from quarry_mq.store.offsets import QueueId
from quarry_mq.store.opening.open_store import OpenStore
from quarry_mq.store.replication import ReplicatedRows, SharedKind, SharedRow

log = structlog.get_logger(__name__)

NAMED_MAX: Final = 5
"""Number of topics that an error names."""


class Rejoined(NamedTuple):
    """The result of rejoining, or of a dry run.

    `taken`: number of the other member's rows. `removed`: rows that are deleted here. `told`: rows that are announced
    to the others. `messages`: number of messages of each topic that is deleted.
    """

    taken: int
    removed: Sequence[SharedRow]
    told: Sequence[SharedRow]
    messages: dict[str, int]


class Rejoining:
    """Rejoins the cluster on an operator's request. Lives on the event loop's thread."""

    def __init__(self, exchange: Exchange, replicated: ReplicatedRows, messages_of: Callable[[str], int]) -> None:
        """`messages_of` returns the number of messages of a topic on this member."""
        self._exchange = exchange
        self._replicated = replicated
        self._messages_of = messages_of

    async def rejoin(self, name: str, *, dry_run: bool, delete_messages: bool) -> Rejoined:
        """Take all replicated rows from another member.

        Raises NoSuchMember, MemberUnreachable, NotAMember; Forbidden when nothing was missed, when the other member
        cannot say what it knows, or when messages would be deleted and `delete_messages` is not set; RowRefused or
        PeerAhead for rows that cannot be taken.
        """
        page = await self._exchange.all_of(name)
        if not page.told.known:
            raise Forbidden(f"{name} has not read from any other member yet: use another one, or wait")
        if self._replicated.horizons.missed(page.told.forgotten) is None:
            raise Forbidden(f"this member has not missed any deletion that {name} knows of")
        unknown = await asyncio.to_thread(self._replicated.unknown_to, page.rows, page.told)
        gone, told = (list(filter(self._is_of_others, rows)) for rows in unknown)
        topics = (row.name for row in gone if row.kind is SharedKind.TOPIC)
        messages = {topic: count for topic in topics if (count := self._messages_of(topic))}
        if not dry_run:
            if messages and not delete_messages:
                raise Forbidden(
                    f"{len(messages)} topics were deleted on other members and have messages here, such as "
                    f"{_some(messages)}: consume or back up the messages, then use --delete-messages"
                )
            taken = await asyncio.to_thread(
                self._replicated.rejoin, page.rows, peer=name, until=page.until, told=page.told, gone=gone
            )
            self._exchange.take(taken)
            log.info("rejoined the cluster", member=name, rows=len(page.rows), removed=len(gone), told=len(told))
        return Rejoined(len(page.rows), gone, told, messages)

    def _is_of_others(self, row: SharedRow) -> bool:
        return (row.kind, row.name) != (SharedKind.MEMBER, self._replicated.member)


def messages_of(store: OpenStore, topic: str) -> int:
    """Return the number of messages that a store holds of a topic."""
    row = store.topics.get(topic)
    queues = range(0 if row is None else row.queue_count)
    bounds = (store.messages.bounds(QueueId(topic, number)) for number in queues)
    return sum(each.maximum - each.minimum for each in bounds)


def _some(messages: dict[str, int]) -> str:
    return ", ".join(f"{topic} ({count})" for topic, count in sorted(messages.items())[:NAMED_MAX])
