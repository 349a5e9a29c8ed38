"""The protocol of the h2 front: HTTP/2 frames, header blocks and gRPC messages, without any I/O."""
