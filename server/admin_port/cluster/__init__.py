"""The calls that members of a cluster make to each other (`quarry.cluster.v1`), and how a broker joins."""
