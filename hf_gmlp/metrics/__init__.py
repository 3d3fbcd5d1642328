"""Metrics as modules of the `evaluate` library, loaded from this folder without a network."""
