"""The clauses of the worktree profile, a module for each family: what is set up, what runs, and what has to be there then."""
