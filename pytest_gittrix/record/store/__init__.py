"""Sessions on the disk, and the index that is derived from them and can be deleted."""
