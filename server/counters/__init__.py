"""Numbers that are counted while the broker serves, as plain Python values without a metrics library."""
