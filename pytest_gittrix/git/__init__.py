"""git's own formats: objects, trees, packs, references, the index, ignore rules and patches."""
