"""Consume queues in a key-value engine, laid out as RocketMQ lays them out in RocksDB."""
