"""A choice of changes becomes one commit on durable."""
