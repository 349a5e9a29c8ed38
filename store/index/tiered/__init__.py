"""The tiered index: files that are filled, sealed, compacted and uploaded to an object store."""
