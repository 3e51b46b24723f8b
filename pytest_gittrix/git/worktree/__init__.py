"""A person's work tree: what git makes of its files by attributes and configuration, and how it is brought forward."""
