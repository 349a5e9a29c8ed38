"""Commands that send, receive and find messages of a live broker."""
