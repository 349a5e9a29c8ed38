"""What commands against a live broker share: the connection, its options, and fields of answers."""
