"""Conversions from checkpoints of other projects, with one module for each project."""
