"""Pull requests at a forge, behind one protocol."""
