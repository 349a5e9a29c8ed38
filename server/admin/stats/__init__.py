"""The overview of a broker: its statistics now, the last hour, and what needs an operator's attention."""
