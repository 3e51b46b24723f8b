"""Worlds, rivals, races and crashes for tests. Imports no pytest."""
