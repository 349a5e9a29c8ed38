"""Following a live RocketMQ master: its log by the HA protocol, its metadata by the remoting protocol."""
