"""The way out of a confined program whose network is a list: it passes on what is listed, and counts exchanges with models."""
