"""The package is the only place for file access: no other module calls `os`, `open` or `mmap` on store files."""

from quarry_mq.store.fs.copies import CopyingDisk, PosixCopyingDisk
from quarry_mq.store.fs.posix import PosixDisk, hold_descriptors, keep_from_others
from quarry_mq.store.fs.protocol import PAGE_BYTES, DirectoryEntry, Disk, DiskLock, DiskSpace, SegmentFile, SparseFile

__all__ = [
    "PAGE_BYTES",
    "CopyingDisk",
    "DirectoryEntry",
    "Disk",
    "DiskLock",
    "DiskSpace",
    "PosixCopyingDisk",
    "PosixDisk",
    "SegmentFile",
    "SparseFile",
    "hold_descriptors",
    "keep_from_others",
]
