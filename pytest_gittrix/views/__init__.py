"""One session, five dialects: pure functions over the fold."""
