"""The results of an eval run: its store, its manifest, summaries and comparisons."""
