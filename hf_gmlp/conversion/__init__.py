"""Checkpoints of other projects made into ours, and ours into timm's: one module per project, and what they share."""
