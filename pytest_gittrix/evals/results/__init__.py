"""What an eval run leaves: its store, its manifest, summaries and comparisons."""
