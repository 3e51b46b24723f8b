"""Whose failure a sample is: the machine's, which counts for nothing, or the agent's, which harmed what it works in."""
