"""Consume queues in files, as RocketMQ keeps them with `storeType=default`."""
