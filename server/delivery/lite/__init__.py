"""Delivery of lite topics: one receive serves all lite topics that the client is subscribed to."""
