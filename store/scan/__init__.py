"""Reading the commit log in bulk, for recovery, rebuild, verification, backup and analysis.

In layers, each usable by itself:

- `scan_segment` turns one segment's memory into batches of columns, thousands of records at a time;
- `scan_records` reads a stretch of the log record by record, and makes what queues need of it: slow, and what
  faster ways are compared with.

The verdict on every byte is that of `store.record.decode_record`, whichever way is taken.

Public face of the package: other packages import from here.
"""

from store.scan.columns import Ending, RecordBatch, RecordColumns
from store.scan.found import FoundRecords, LogScan
from store.scan.plain import RUN_RECORDS, scan_records
from store.scan.segment import WINDOW_BYTES, scan_segment

__all__ = [
    "RUN_RECORDS",
    "WINDOW_BYTES",
    "Ending",
    "FoundRecords",
    "LogScan",
    "RecordBatch",
    "RecordColumns",
    "scan_records",
    "scan_segment",
]
