"""Commands about a live broker itself: overview, cluster, settings, users and the console."""
