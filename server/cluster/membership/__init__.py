"""The members of a cluster: their addresses and states, discovery, and the ownership of message groups."""
