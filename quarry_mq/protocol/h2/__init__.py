"""HTTP/2 and gRPC on the wire, for both ends: frames, header blocks, messages. There is no I/O here."""
