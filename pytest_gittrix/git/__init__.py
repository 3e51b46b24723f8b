"""git's own formats: objects, trees, packs, references, the index, ignore rules and patches. It knows no workspace and no session."""
