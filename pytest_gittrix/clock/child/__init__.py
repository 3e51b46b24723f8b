"""What Python programs of a test load as they start, so that they show the clock of the test. It knows nothing of the package."""
