"""Counts of parameters and FLOPs, and plots of what a model has learned."""
