"""What a session's events add up to: pure functions of the log, and the values that they give."""
