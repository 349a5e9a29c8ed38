"""The module plans the backup of a stopped store."""

from __future__ import annotations

from quarry_mq.store.backup.plan import BackupPlan, frozen_below, plan_offline
from quarry_mq.store.layout.kind import StoreKind
from quarry_mq.store.offline.store import OfflineStore
from quarry_mq.store.offsets import PhysicalOffset
from quarry_mq.store.record import Blank, StoredMessage
from quarry_mq.store.state.identity import StoreIdentity


def plan_stopped(store: OfflineStore) -> BackupPlan:
    """Plan the backup of everything that the store holds. Raises what reading it raises."""
    segments = store.segments
    data_ends = [(base, store.disk.data_end(segments.path_of(base))) for base in segments.bases]
    durable = _durable_up_to(store)
    files = plan_offline(
        store.disk,
        store.paths.root,
        bases=segments.bases,
        segment_size=segments.segment_size,
        frozen_below=frozen_below(data_ends, durable),
    )
    with_data = [base for base, data_end in data_ends if data_end > 0]
    last = with_data[-1] if with_data else segments.minimum
    # an offset in the last segment where a record is known to end saves reading up to it
    start = durable if durable is not None and last <= durable < last + segments.segment_size else last
    return BackupPlan(
        files,
        live=False,
        log_begin=segments.minimum,
        log_end=_log_end(store, start),
        segment_size=segments.segment_size,
    )


def _durable_up_to(store: OfflineStore) -> PhysicalOffset | None:
    if store.found.kind is not StoreKind.QUARRY:
        return None
    return StoreIdentity(store.state_engine(), store.paths.quarry).flushed_up_to


def _log_end(store: OfflineStore, start: PhysicalOffset) -> PhysicalOffset:
    end = start
    for found in store.records(start):
        if not isinstance(found, StoredMessage | Blank):
            break
        end = PhysicalOffset(found.physical_offset + found.size)
    return end
