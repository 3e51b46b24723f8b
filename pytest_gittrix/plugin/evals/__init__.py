"""Evals as tests of pytest: a test node for each sample of a suite."""
