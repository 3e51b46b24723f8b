"""The daemon, ``gittrix serve``: the sessions of a team over HTTP, and the engine for every command."""
