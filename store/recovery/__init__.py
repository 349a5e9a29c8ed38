"""The package recovers a store: it finds the log's end, decides whether the store may open, and updates
derived data.
"""
