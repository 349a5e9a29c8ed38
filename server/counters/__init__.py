"""Count what happens while the broker serves, as plain Python values without a metrics library."""
