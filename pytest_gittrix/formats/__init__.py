"""The formats of files that people write for the package or read from it: TOML, HTML from templates, and JUnit XML."""
