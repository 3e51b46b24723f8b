"""The inputs of an eval run: suites, cases, repositories, and the identity of each."""
