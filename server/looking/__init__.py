"""What operators look at of a broker's store: its files, its queues, and what waits in it."""
