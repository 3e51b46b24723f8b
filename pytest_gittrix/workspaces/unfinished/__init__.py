"""What would be lost with a git worktree: the one look that ``gittrix unfinished`` takes, by a person's own git."""
