"""The one seam for file access. Only modules in here call `os`, `open` and `mmap` on store files."""

from store.disk.copying import CopyingDisk, PosixCopyingDisk
from store.disk.modes import keep_from_others
from store.disk.posix import PosixDisk
from store.disk.protocol import DirectoryEntry, Disk, DiskLock, DiskSpace, SegmentFile, SparseFile
from store.disk.reserve import hold_descriptors

__all__ = [
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
