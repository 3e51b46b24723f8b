"""The worktree profile: whether a manager of git worktrees loses work, judged by git beside plain git's own commands."""
