"""How samples are run: agents, their programs, workers and checks."""
