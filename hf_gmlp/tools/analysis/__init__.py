"""What is counted and drawn of a model, and the machine that a number was measured on."""
