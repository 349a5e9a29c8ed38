"""`quarry bench` puts load on a live broker as clients do."""
