"""Lite topics: their subscriptions, their number, their expiry and their removal."""
