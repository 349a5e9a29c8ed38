"""A follower continues the log of another broker: it receives bytes, makes them durable, and fills its queues."""

from quarry_mq.store.follower.followed_store import FollowedStore, follow

__all__ = ["FollowedStore", "follow"]
