"""How long the engine takes, beside plain git and beside a floor, in one run. Start it with ``make bench``."""
