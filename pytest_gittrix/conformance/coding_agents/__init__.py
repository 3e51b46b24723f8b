"""The profile of coding agents: what they do to files, repositories and secrets, and how they take a model that fails, as clauses."""
