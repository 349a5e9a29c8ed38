"""Bodies as readers want them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from store.record.system_flag import COMPRESSED, Compression, compression

_STREAMS: Final = {Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}
"""What pyarrow calls them. ZLIB is Python's own."""


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
    try:
        method = compression(system_flag)
        if method is None or not body:
            return body
        if method is Compression.ZLIB:
            return zlib.decompress(body)
        return bytes(pa.CompressedInputStream(pa.BufferReader(body), _STREAMS[method]).read())
    except (zlib.error, pa.ArrowException, OSError, ValueError) as error:
        raise ValueError(f"offset {physical_offset}: the body cannot be uncompressed: {error}") from error
