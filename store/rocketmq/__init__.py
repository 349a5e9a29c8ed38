"""What RocketMQ left in a store directory besides messages: read once, when Quarry opens the store first."""

from store.rocketmq.json_text import NotJson, parse_json
from store.rocketmq.metadata import ImportReport, import_metadata, read_metadata
from store.rocketmq.model import ConsumerOffset, DataVersion, RocketmqMetadata

__all__ = [
    "ConsumerOffset",
    "DataVersion",
    "ImportReport",
    "NotJson",
    "RocketmqMetadata",
    "import_metadata",
    "parse_json",
    "read_metadata",
]
