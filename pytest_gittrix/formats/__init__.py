"""The formats of what people write for us and read from us, once: TOML, HTML, tables and JUnit XML."""
