"""Messages that a call has found: the caller sees those of topics that it may read, wherever they lie.

What it may not see is not there: the answer is the one that it would get if there were no such message.
"""

from __future__ import annotations

from server.admin.browsing.wish import MessageWish
from server.admin.origins import has_copies, topics_of
from server.admin_port.calls.caller import caller_may, is_anybody_asked
from server.security.terms import Access
from store.record import StoredMessage
from store.security.model import Action, ResourceKind


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
