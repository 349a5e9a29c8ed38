"""The common parts of commands for a live broker: the connection, its options, and fields of answers."""
