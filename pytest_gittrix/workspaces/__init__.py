"""The agent's directory: made from a seed, read as a tree, and removed."""
