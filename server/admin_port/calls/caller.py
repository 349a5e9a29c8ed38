"""The caller of the call that is being served, the address of the caller, and which messages the caller may see.

A caller who may read a message's topic may see the message, wherever copies of it lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final

import grpc.aio

from quarry_mq.server.admin.browsing.browser import MessageWish
from quarry_mq.server.admin.message_lookup import has_copies, topics_of
from quarry_mq.server.errors import PermissionDenied
from quarry_mq.server.front.grpcio import UNIX, peer_text
from quarry_mq.server.security.authorization import Need
from quarry_mq.server.security.terms import Access
from quarry_mq.store.record import StoredMessage
from quarry_mq.store.security.model import Action, ResourceKind

BROWSER: Final = "x-quarry-browser"
"""Metadata with the browser's `ip:port`. It is believed on the Unix socket alone.

Only the broker's own process, and users who may do anything with that process, can open the socket.
"""

_PEER_SIZE_MAX: Final = 64


def caller_peer(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return `ip:port`; `unix` for a call on the Unix socket that does not name a browser."""
    peer = context.peer()
    if peer.startswith(UNIX):
        for name, value in context.invocation_metadata() or ():
            if name == BROWSER and isinstance(value, str) and value and len(value) <= _PEER_SIZE_MAX:
                return value
    return peer_text(peer)


Require = Callable[[Sequence[Need]], None]
"""Check that the caller has rights. Raises PermissionDenied, which names what is missing."""


def _nothing(_needs: Sequence[Need]) -> None:
    """Require nothing: there is no authentication, or every user may do everything."""


_REQUIRE: Final[ContextVar[Require]] = ContextVar("require", default=_nothing)
"""The check of the current call, each of which is a task of its own."""


def caller_is(require: Require) -> None:
    """Set the check for the current call, once its caller is known."""
    _REQUIRE.set(require)


def is_anybody_asked() -> bool:
    """Return whether some callers may not do everything."""
    return _REQUIRE.get() is not _nothing


def caller_must(accesses: Sequence[Access]) -> None:
    """Check the caller's rights again during a long call, since they may be revoked. Raises PermissionDenied."""
    _REQUIRE.get()([(each,) for each in accesses])


def caller_may(accesses: Sequence[Access]) -> bool:
    """Return whether the caller is allowed all of this. Without accesses, only super users are."""
    try:
        _REQUIRE.get()([(each,) for each in accesses] or [()])
    except PermissionDenied:
        return False
    return True


def caller_may_read(topic: str) -> bool:
    """Return whether the caller may look at the messages of a topic; "" for an unknown one."""
    return caller_may([Access(ResourceKind.TOPIC, topic, Action.GET)] if topic else [])


def caller_may_see(record: StoredMessage) -> bool:
    """Return whether the caller may read all topics of a message. If they are unknown, only super users may."""
    if not is_anybody_asked():
        return True
    topics = topics_of(record)
    return caller_may([Access(ResourceKind.TOPIC, each, Action.GET) for each in topics or ()])


def caller_may_see_if_known(record: StoredMessage | None) -> bool:
    """Return whether the caller may see a record. None, one that cannot be read, is for super users only."""
    return caller_may([]) if record is None else caller_may_see(record)


def as_caller_may_see(wish: MessageWish, topic: str) -> MessageWish:
    """Restrict a filter to what the caller may see, if this topic may hold copies of other topics' messages."""
    return wish._replace(may_see=caller_may_see) if has_copies(topic) and is_anybody_asked() else wish
