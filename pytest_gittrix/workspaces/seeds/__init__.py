"""Seeds: what workspaces start from, prepared once for each baseline commit, and written out as files and as a git directory."""
