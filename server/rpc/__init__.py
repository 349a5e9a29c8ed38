"""The messaging service checks each call, has the broker's parts carry it out, and translates the result."""
