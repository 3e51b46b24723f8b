"""Recordings of what a model was asked and answered: written to be read in a review, and played again without a network."""
