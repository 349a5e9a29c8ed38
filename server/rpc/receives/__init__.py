"""Calls of consumers: receive, acknowledge, pull, and offsets."""
