"""What a new workspace gets in addition to its baseline, so that it is like a person's checkout."""
