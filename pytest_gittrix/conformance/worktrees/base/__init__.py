"""What the clauses of the worktree profile stand on: the description of a tool, the world that it runs in, and forms of work."""
