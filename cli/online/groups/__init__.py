"""Commands about consumer groups: their lag, their consumers, and their dead letters."""
