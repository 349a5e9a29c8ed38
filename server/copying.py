"""The broker's own copies of messages: delivered late, given to a group again, laid among the dead letters."""

from __future__ import annotations

from collections.abc import Mapping

from store.message import Host, Message
from store.record import StoredMessage


def copy_of(
    record: StoredMessage, *, topic: str, queue_number: int, properties: Mapping[str, str], store_host: Host
) -> Message:
    """The message of a record for another queue. It names nothing as what it is a copy of."""
    return Message(
        topic=topic,
        queue_number=queue_number,
        body=bytes(record.body),
        properties=properties,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=store_host,
        flag=record.flag,
        system_flag=record.system_flag,
        reconsume_times=record.reconsume_times,
    )
