"""The worktree profile: whether a manager of git worktrees loses work, judged by git and compared with plain git's own commands."""
