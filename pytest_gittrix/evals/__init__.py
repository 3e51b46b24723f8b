"""Reproducible eval runs: suites of cases on real repositories, run by agents in sessions, kept so that they resume and compare."""
