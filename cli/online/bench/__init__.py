"""`quarry bench`: load on a live broker, as clients make it."""
