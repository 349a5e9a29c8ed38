"""Lite topics: their subscriptions, the count per topic, their expiry and their removal."""
