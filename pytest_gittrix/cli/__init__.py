"""The `gittrix` command."""
