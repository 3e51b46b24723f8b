"""Pages and plots on which a person reads the result of an eval run."""
