"""The layout of a store directory: its file names, what kind of store it is, and where it keeps its consume queues."""
