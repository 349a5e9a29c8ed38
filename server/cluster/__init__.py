"""Joins brokers into one cluster: membership, replication of metadata and calls between members (docs/cluster.md)."""
