"""Recovery: it finds the end of the log, decides whether the store may open, and brings derived data up to that end."""
