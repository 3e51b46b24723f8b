"""Sessions inside Inspect AI: the sandbox, the scorer, what Inspect finds of both, and JUnit XML from its logs."""
