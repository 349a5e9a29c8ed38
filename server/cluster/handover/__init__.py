"""Handovers of message groups between members: the rules, the barriers, and the stored row."""
