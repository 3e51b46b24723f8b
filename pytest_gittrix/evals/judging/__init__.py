"""Whether the result of a sample is right: checks, and hidden tests that code under test cannot answer for."""
