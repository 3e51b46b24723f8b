"""What a person reads of a run."""
