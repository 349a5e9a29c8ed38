"""Uncompresses bodies for exports.

A body that does not match its record's flags gets a reason beside it and ends no job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from quarry_mq.protocol.messages.bodies import body_problem, plain_body
from quarry_mq.protocol.messages.system_flag import COMPRESSED

PROBLEM: Final = "bodyProblem"
"""Column with the reason why there is no body; null where there is one."""


def with_problem(schema: StructType) -> StructType:
    """Return the schema of rows whose bodies were uncompressed: the schema with the column `bodyProblem`."""
    return StructType([*schema.fields, StructField(PROBLEM, StringType())])


def plain_bodies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with an uncompressed column `body`, as `sysFlag` says that it is compressed."""
    return plain_where(batches, lambda _: True)


def plain_where(batches: Iterable[pa.RecordBatch], is_wanted: Callable[[int], bool]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, uncompressing the bodies whose flags are wanted.

    A body that cannot be uncompressed is null, and `bodyProblem` says why.
    """
    for batch in batches:
        flags, bodies = batch.column("sysFlag").to_pylist(), batch.column("body").to_pylist()
        problems: list[str | None] = [None] * len(flags)
        for row, flag in enumerate(flags):
            if flag & COMPRESSED and is_wanted(flag):
                stored = bodies[row]
                bodies[row] = plain_body(flag, stored)
                problems[row] = None if bodies[row] is not None else body_problem(flag, stored)
        place = batch.schema.get_field_index("body")
        plain = batch.set_column(place, "body", pa.array(bodies, pa.binary()))
        yield plain.append_column(PROBLEM, pa.array(problems, pa.string()))
