"""The overview of a broker: its figures now, the last hour, and what needs an operator's attention."""
