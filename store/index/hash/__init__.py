"""RocketMQ's index files: their layout, and an index made of a folder of them."""
