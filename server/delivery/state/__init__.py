"""The state of consumer groups: their offsets, their messages in flight, and how both are stored."""
