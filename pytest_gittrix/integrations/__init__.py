"""Sessions inside other frameworks: each module is for one framework, and only that module loads it."""
