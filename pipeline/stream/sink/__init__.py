"""Sends rows as messages to live brokers."""
