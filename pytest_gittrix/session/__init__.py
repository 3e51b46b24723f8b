"""What to do: commands over record and adapters. Knows no pytest, no Hypothesis, no command line and no view."""
