"""The caller of the call that is being served, and what of the messages found the caller may see.

Messages are seen by those who may read their topics, wherever copies of the messages lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Final

from quarry_mq.server.admin.browsing.wish import MessageWish
from quarry_mq.server.admin.origins import has_copies, topics_of
from quarry_mq.server.errors import PermissionDenied
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.terms import Access
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

Require = Callable[[Sequence[Need]], None]
"""Raises PermissionDenied, which names what is missing."""


def _nothing(_needs: Sequence[Need]) -> None:
    """Nobody is asked who he is, or may do everything."""


_REQUIRE: Final[ContextVar[Require]] = ContextVar("require", default=_nothing)
"""Of a call, each of which is a task of its own."""


def caller_is(require: Require) -> None:
    """To be called once it is known who calls."""
    _REQUIRE.set(require)


def is_anybody_asked() -> bool:
    """Whether there are callers that may not do everything."""
    return _REQUIRE.get() is not _nothing


def caller_must(accesses: Sequence[Access]) -> None:
    """For calls that go on for long: rights may be taken away meanwhile. Raises PermissionDenied."""
    _REQUIRE.get()([(each,) for each in accesses])


def caller_may(accesses: Sequence[Access]) -> bool:
    """Whether the caller is allowed all of this. False for nothing: that is for super users alone."""
    try:
        _REQUIRE.get()([(each,) for each in accesses] or [()])
    except PermissionDenied:
        return False
    return True


def caller_may_read(topic: str) -> bool:
    """Whether the caller may look at the messages of a topic; "" for one that nobody knows."""
    return caller_may([Access(ResourceKind.TOPIC, topic, Action.GET)] if topic else [])


def caller_may_see(record: StoredMessage) -> bool:
    """Whether the caller may look at all that the message is of. Super users alone see what nobody can tell of."""
    if not is_anybody_asked():
        return True
    topics = topics_of(record)
    return caller_may([Access(ResourceKind.TOPIC, each, Action.GET) for each in topics or ()])


def caller_may_see_if_known(record: StoredMessage | None) -> bool:
    """The same of a record that cannot be read, perhaps: nobody can tell what it is of."""
    return caller_may([]) if record is None else caller_may_see(record)


def as_caller_may_see(wish: MessageWish, topic: str) -> MessageWish:
    """The same wish, without what the caller may not see of this topic or light queue."""
    return wish._replace(may_see=caller_may_see) if has_copies(topic) and is_anybody_asked() else wish
