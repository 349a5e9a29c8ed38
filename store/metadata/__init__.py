"""Topics, consumer groups and consumer offsets, one row each in the database `<store>/quarry/`."""

from quarry_mq.store.metadata.groups import (
    ATTEMPTS_DEFAULT,
    Backoff,
    CustomizedBackoff,
    ExponentialBackoff,
    Group,
    GroupTable,
)
from quarry_mq.store.metadata.offsets import ConsumerOffsetTable
from quarry_mq.store.metadata.topics import (
    QUEUES_MAX,
    READ_WRITE,
    IllegalGroupName,
    IllegalTopicName,
    Permission,
    Topic,
    TopicTable,
    TopicType,
    check_group_name,
    check_topic_name,
)

__all__ = [
    "ATTEMPTS_DEFAULT",
    "QUEUES_MAX",
    "READ_WRITE",
    "Backoff",
    "ConsumerOffsetTable",
    "CustomizedBackoff",
    "ExponentialBackoff",
    "Group",
    "GroupTable",
    "IllegalGroupName",
    "IllegalTopicName",
    "Permission",
    "Topic",
    "TopicTable",
    "TopicType",
    "check_group_name",
    "check_topic_name",
]
