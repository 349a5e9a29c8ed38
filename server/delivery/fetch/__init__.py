"""Fetching of messages for one receive or pull: which ones, in which order, and how many."""
