"""Who calls, what they may do, and a line for each time that they may not."""
