"""Many brokers as one cluster: who its members are, and what they tell each other (docs/cluster.md)."""
