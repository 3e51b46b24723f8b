"""The verbs of sessions and members: a function with its declaration each, and the catalogue of all of them."""
