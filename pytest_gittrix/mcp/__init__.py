"""A session as a server of the Model Context Protocol: its agent's verbs as tools, and requests for what a person decides."""
