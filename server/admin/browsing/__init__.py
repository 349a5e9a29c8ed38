"""Read through the messages of a topic without being a consumer."""
