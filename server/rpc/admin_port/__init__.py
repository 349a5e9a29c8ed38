"""The admin port: what `quarry topic`, `group` and the like talk to. It answers errors with gRPC status codes."""
