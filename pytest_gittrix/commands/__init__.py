"""Every verb of the command line as a function of its options, with its parser; run by the terminal and by the daemon."""
