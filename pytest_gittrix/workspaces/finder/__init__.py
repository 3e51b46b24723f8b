"""Finds the work that is nowhere else: what an eviction archives, a finalization pushes, a review and `gittrix unfinished` name."""
