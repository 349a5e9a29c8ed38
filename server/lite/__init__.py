"""Lite topics: who is subscribed to them."""
