"""Slaves of RocketMQ: the log that is pushed to them, and answers to what they ask."""
