"""The programs that benchmarks run beside Quarry: Apache RocketMQ, and load from the official Java client."""
