"""Sessions inside the tools that people have already: each module knows one framework, and only that module loads it."""
