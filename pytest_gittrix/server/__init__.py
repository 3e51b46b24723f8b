"""The daemon, ``gittrix serve``: the sessions of a team over HTTP (BotMinter, session-systems 4.3), and the engine for every command."""
