"""What is said to a model and by it, and the four protocols in which it is said: pure functions of values and bytes."""
