"""The message store: commit log, consume queues, metadata. Knows nothing of gRPC."""
