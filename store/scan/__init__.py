"""The package reads the commit log in bulk, for recovery, rebuild, verification, backup and analysis.

It has layers, each usable by itself:

- `scan_segment` turns one segment's memory into batches of columns, thousands of records at a time; `scan_apart` does
  so for records from different places of a log;
- `scan_log` does so for a log, one segment after the other, and reads ahead;
- `ScannedRequests` are the dispatch requests of a batch's records, for queues that take columns;
- `scan_in_bulk` is all of this for recovery. `scan_records` does the same record by record: slow, and what faster ways
  are compared with.

`next_whole` finds where reading continues after damage, `first_record` where it may begin in the middle of a segment.

All layers give the same verdict on every byte as `store.record.decode_record`.

Other packages import from here, not from the modules.
"""

from quarry_mq.store.scan.columns import Ending, RecordBatch, RecordColumns
from quarry_mq.store.scan.dispatch import ScannedRequests, pending_requests
from quarry_mq.store.scan.fields import RUN_RECORDS, FoundRecords, LogScan, scan_records
from quarry_mq.store.scan.log import found_in, scan_in_bulk, scan_log
from quarry_mq.store.scan.resync import RECORD_MAGIC, first_record, is_whole, next_readable, next_whole
from quarry_mq.store.scan.segment import WINDOW_BYTES, scan_apart, scan_segment

__all__ = [
    "RECORD_MAGIC",
    "RUN_RECORDS",
    "WINDOW_BYTES",
    "Ending",
    "FoundRecords",
    "LogScan",
    "RecordBatch",
    "RecordColumns",
    "ScannedRequests",
    "first_record",
    "found_in",
    "is_whole",
    "next_readable",
    "next_whole",
    "pending_requests",
    "scan_apart",
    "scan_in_bulk",
    "scan_log",
    "scan_records",
    "scan_segment",
]
