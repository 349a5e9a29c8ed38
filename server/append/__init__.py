"""The write path appends the sends of one loop iteration together and answers them once they are durable."""
