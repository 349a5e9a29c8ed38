"""Bodies as readers want them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from store.record import compressed_bodies
from store.record.system_flag import COMPRESSED


def plain_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with their column `body` uncompressed, as `sysFlag` says that it is compressed.

    Raises ValueError naming the physical offset of a body that does not hold what it should.
    """
    for batch in batches:
        flags = batch.column("sysFlag").to_pylist()
        if not any(flag & COMPRESSED for flag in flags):
            yield batch
            continue
        rows = zip(batch.column("phyOffset").to_pylist(), flags, batch.column("body").to_pylist(), strict=True)
        bodies = pa.array([plain_body(*row) for row in rows], pa.binary())
        yield batch.set_column(batch.schema.get_field_index("body"), "body", bodies)


def plain_body(physical_offset: int, system_flag: int, body: bytes) -> bytes:
    """One body, uncompressed if it is compressed."""
    plain = compressed_bodies.plain_body(system_flag, body)
    if plain is None:
        raise ValueError(f"offset {physical_offset}: the body cannot be uncompressed")
    return plain
