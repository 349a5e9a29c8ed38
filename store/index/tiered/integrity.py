"""Check every byte of an index file: its parts must agree with each other."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import numpy as np

from quarry_mq.store.errors import StoreDamaged
from quarry_mq.store.index.tiered.chain_file import ChainedFile, IndexShape
from quarry_mq.store.index.tiered.layout import CRC_SIZE, NO_RUN, FileHeader, item_of, run_checksum, runs_at
from quarry_mq.store.index.tiered.object_store.protocol import ObjectStore
from quarry_mq.store.index.tiered.object_store.uploaded import UploadNote
from quarry_mq.store.index.tiered.runs import slots_in


def check_chains(file: ChainedFile, shape: IndexShape) -> None:
    """Check a sealed file, which has items. Raises StoreDamaged."""
    file.check_items()
    header, items = file.header, file.all_items()
    places, times = items[shape.place].astype(np.int64), items["time"].astype(np.int64)
    span = [0, header.end_ms - header.begin_ms], [header.begin_place, header.end_place]
    for column, (first, last) in zip((times, places), span, strict=True):
        if column[0] != first or column[-1] != last or (np.diff(column) < 0).any():
            _damaged(file.path, "times or places of its items are not in the order that its header states")
    if not file.has_right_chains():
        _damaged(file.path, "an item is missing in the chain of its hash")


def check_runs(path: Path, content: memoryview, header: FileHeader, shape: IndexShape) -> None:
    """Check a compacted file by the checksums of its runs. Raises StoreDamaged."""
    item_size = item_of(shape.payload).itemsize
    slots = slots_in(path, content, header.slots)
    positions, sizes = slots["position"].astype(np.int64), slots["size"].astype(np.int64)
    used = np.flatnonzero(sizes)
    ends = runs_at(header.slots) + np.cumsum(sizes)
    counts, rests = np.divmod(sizes[used] - CRC_SIZE, item_size)
    is_whole = ends[-1] == header.file_size and int(counts.sum()) == header.items and not rests.any()
    if not is_whole or (positions != np.where(sizes > 0, ends - sizes, NO_RUN)).any():
        _damaged(path, "its slots do not list the runs of all items one after the other")
    for slot, position, count in zip(used.tolist(), positions[used].tolist(), counts.tolist(), strict=True):
        end = position + count * item_size
        if content[end : end + CRC_SIZE] != run_checksum(slot, content[position:end]):
            _damaged(path, f"the run of slot {slot} differs from what was written")


def check_object(objects: ObjectStore, note: UploadNote) -> None:
    """Compare an object in the object store with its note. Raises StoreDamaged, ObjectStoreError."""
    digest = sha256()
    for chunk in objects.chunks(note.object_name):
        digest.update(chunk)
    if digest.hexdigest() != note.sha256:
        _damaged(Path(objects.address, note.object_name), "the uploaded file differs from what was sent")


def _damaged(path: Path, reason: str) -> NoReturn:
    raise StoreDamaged(path, reason)
