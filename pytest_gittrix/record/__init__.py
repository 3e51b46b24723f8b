"""What happened to sessions: their logs, what the logs add up to, and the store that keeps them. It knows no git."""
