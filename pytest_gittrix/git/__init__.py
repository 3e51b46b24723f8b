"""The only room that knows git: objects, trees, packs, references, workspaces, snapshots and patches. Knows no session."""
