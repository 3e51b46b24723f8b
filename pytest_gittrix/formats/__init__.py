"""The formats of files that people write for us and read from us, once: TOML, HTML by templates, and JUnit XML."""
