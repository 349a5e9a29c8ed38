"""Pages of topics and groups with their figures, at a bounded cost for any number of names."""
