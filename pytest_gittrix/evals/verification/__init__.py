"""Whether suites and runs are to be trusted: cases validated, runs done twice, samples replayed, results judged again."""
