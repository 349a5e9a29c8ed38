"""The package handles what RocketMQ keeps in a store directory besides messages and queues.

Its metadata is read once, when Quarry first opens the store, and written on request; its `checkpoint` is read and
written.
"""

from quarry_mq.store.rocketmq.checkpoint import (
    TIME_MARGIN_MS,
    UNKNOWN,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from quarry_mq.store.rocketmq.export import Exported, Form, export_metadata
from quarry_mq.store.rocketmq.metadata import ImportReport, import_metadata, read_metadata
from quarry_mq.store.rocketmq.model import ConsumerOffset, DataVersion, NotJson, RocketmqMetadata, parse_json
from quarry_mq.store.rocketmq.pending_progress import TIMER_STATE

__all__ = [
    "TIMER_STATE",
    "TIME_MARGIN_MS",
    "UNKNOWN",
    "Checkpoint",
    "ConsumerOffset",
    "DataVersion",
    "Exported",
    "Form",
    "ImportReport",
    "NotJson",
    "RocketmqMetadata",
    "decode_checkpoint",
    "encode_checkpoint",
    "export_metadata",
    "import_metadata",
    "parse_json",
    "read_metadata",
]
