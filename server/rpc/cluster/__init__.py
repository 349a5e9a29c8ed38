"""What members of a cluster ask of each other: `quarry.cluster.v1`, served on the admin port."""
