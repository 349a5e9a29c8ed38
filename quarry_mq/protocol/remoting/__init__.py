"""The remoting protocol of RocketMQ, without I/O: what both ends of a connection share."""
