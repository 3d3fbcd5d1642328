"""Scores, what they are worth, and the baselines that they are compared with."""
