"""Authenticate callers, authorize their calls, and log the calls that are denied."""
