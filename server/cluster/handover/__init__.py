"""Handovers of message groups between members: the rules, the barriers, and the row that is kept."""
