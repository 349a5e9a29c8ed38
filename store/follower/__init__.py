"""The package continues a store whose log another broker writes: a RocketMQ master, or the primary of this store."""

from quarry_mq.store.follower.copied_store import CopiedStore, QueuesOutdated, open_copy
from quarry_mq.store.follower.followed_store import FollowedStore, follow

__all__ = ["CopiedStore", "FollowedStore", "QueuesOutdated", "follow", "open_copy"]
