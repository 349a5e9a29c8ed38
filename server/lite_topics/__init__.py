"""The life of lite topics beside their delivery: how many there may be, and when they go."""

from server.lite_topics.counts import LiteTopicCounts
from server.lite_topics.expiry import LiteTopicExpiry
from server.lite_topics.listing import LiteTopicDetails, LiteTopicListing
from server.lite_topics.lite_topics import LiteTopics, LiteTopicSettings
from server.lite_topics.removal import LightQueueRemoval

__all__ = [
    "LightQueueRemoval",
    "LiteTopicCounts",
    "LiteTopicDetails",
    "LiteTopicExpiry",
    "LiteTopicListing",
    "LiteTopicSettings",
    "LiteTopics",
]
