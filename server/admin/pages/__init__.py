"""Pages of topics and groups with their statistics, at a bounded cost for any number of names."""
