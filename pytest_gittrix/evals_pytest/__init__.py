"""Evals as tests of pytest: one node for each sample, in the run that ``gittrix eval`` reads."""
