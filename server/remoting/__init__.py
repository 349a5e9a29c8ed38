"""RocketMQ's remoting protocol: the calls of clients of RocketMQ 4 and of RocketMQ's tools."""
