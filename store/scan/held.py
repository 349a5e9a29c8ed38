"""Which records of a batch change which messages are held back (`store.held`). Most batches have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from store.dispatch import StoredNumbering
from store.held.topics import DEQUEUED_MS, HELD_TOPICS
from store.message import DispatchRequest
from store.record.system_flag import TRANSACTION_MASK, TransactionState
from store.scan.columns import RecordBatch
from store.scan.dispatch import ScannedRequests
from store.scan.tags import stored_properties

_DEQUEUED: Final = DEQUEUED_MS.encode()


def held_requests(batch: RecordBatch) -> Sequence[DispatchRequest]:
    """The requests of those records, in log order; one that changes nothing may be among them."""
    columns = batch.columns
    marked = stored_properties(batch, columns).may_have(_DEQUEUED)
    marked |= columns.system_flag & TRANSACTION_MASK == TransactionState.COMMIT
    of_topic = np.array([topic in HELD_TOPICS for topic in batch.topics], np.bool_)
    if of_topic.any():
        marked |= of_topic[columns.topic_index]
    return ScannedRequests(batch, marked, StoredNumbering()) if marked.any() else ()
