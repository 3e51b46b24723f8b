"""What a model answers: scripts, what goes wrong with an answer, and who gets it again."""
