"""The operating system, once: files, locks, processes, forks and kernel filters."""
