"""Counts of parameters and FLOPs, and pictures of what a model has learned."""
