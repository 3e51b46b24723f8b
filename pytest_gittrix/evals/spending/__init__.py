"""What the models of agents cost: tokens of exchanges, a table of prices, and limits. Pure values."""
