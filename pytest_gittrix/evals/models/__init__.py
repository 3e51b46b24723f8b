"""The models of an eval's agents: how samples reach them, tapes of what was said, and what was used."""
