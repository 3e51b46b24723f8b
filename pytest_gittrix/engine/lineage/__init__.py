"""How sessions begin, are handed on and forked, and are mended after a kill."""
