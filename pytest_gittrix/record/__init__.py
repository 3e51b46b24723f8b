"""What happened: the append-only log, the fold over it, and what is derived from it. Knows no git."""
