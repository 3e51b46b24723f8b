"""A person's work tree: how it is brought forward, what git makes of its files by attributes, and which paths it cannot have elsewhere."""
