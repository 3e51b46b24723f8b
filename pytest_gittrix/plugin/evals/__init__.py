"""Samples of an eval suite as test nodes of pytest."""
