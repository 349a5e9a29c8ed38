"""What the client benchmark runs beside Quarry: Apache RocketMQ, and load from the official Java client."""
