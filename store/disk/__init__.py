"""The one seam for file access. Only `store.disk.posix` calls `os`, `open` and `mmap` on store files."""

from store.disk.posix import PosixDisk
from store.disk.protocol import DirectoryEntry, Disk, DiskLock, DiskSpace, SegmentFile, SparseFile

__all__ = ["DirectoryEntry", "Disk", "DiskLock", "DiskSpace", "PosixDisk", "SegmentFile", "SparseFile"]
