"""`quarry bench`: load on a live broker, as clients make it."""

from cli.online.bench.command import bench

__all__ = ["bench"]
