"""Reading a stretch of the commit log again, record by record, for who makes derived data from it."""

from store.scan.found import FoundRecords, LogScan
from store.scan.plain import RUN_RECORDS, scan_records

__all__ = ["RUN_RECORDS", "FoundRecords", "LogScan", "scan_records"]
