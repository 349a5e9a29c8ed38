"""The package continues a store whose log another broker writes: a RocketMQ master, or the primary of this store."""

from quarry_mq.store.follower.copied_store import CopiedStore, QueuesOutdated, open_copy, recover_copy
from quarry_mq.store.follower.followed_store import FollowedStore, follow
from quarry_mq.store.follower.points import FollowerPoint, PointsOnRequest, is_followed, point_of_follower

__all__ = [
    "CopiedStore",
    "FollowedStore",
    "FollowerPoint",
    "PointsOnRequest",
    "QueuesOutdated",
    "follow",
    "is_followed",
    "open_copy",
    "point_of_follower",
    "recover_copy",
]
