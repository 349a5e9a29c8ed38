"""The package reads a stopped store without changing it: its log, its queues, and messages by key."""
