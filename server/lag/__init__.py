"""Consumer lag: the number of messages that a group has not consumed yet, by topic, queue and lite topic."""
