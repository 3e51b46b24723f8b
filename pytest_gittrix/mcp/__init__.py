"""A session as a server of the Model Context Protocol: what its agent may do, as tools; what a person decides, only asked for."""
