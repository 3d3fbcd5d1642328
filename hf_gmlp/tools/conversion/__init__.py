"""Conversions from checkpoints of other projects, and to timm: one module for each project."""
