"""Redelivery: when hidden messages become visible again, and the walk over those that are due."""
