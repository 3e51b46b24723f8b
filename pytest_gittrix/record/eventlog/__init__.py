"""One append-only file of events for each session."""
