"""What a member hears and who it is: its persona, the terminal of a person, and the prompts of a brain with their sources."""
