"""Shared by the training scripts: arguments, config and model, trainer, metrics, and the output folder."""
