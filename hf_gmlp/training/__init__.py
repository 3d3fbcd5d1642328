"""Shared by the training scripts: flags, recipes, files, config and model, trainer, and the output folder."""
