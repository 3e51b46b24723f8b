"""What credentials look like in the names and bytes of files, and what they are wrapped in."""
