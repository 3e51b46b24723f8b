"""What coding agents write about themselves, read as activity: their logs and databases, and the updates of their protocol."""
