"""The package is the message store: commit log, consume queues, metadata. It knows nothing of gRPC."""
