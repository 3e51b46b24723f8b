"""What an agent of an eval run may reach, and what it reads: seen while it works, and compared before its results are taken over."""
