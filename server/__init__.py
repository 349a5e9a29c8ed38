"""The broker: how calls come in, what they mean, how messages are delivered."""
