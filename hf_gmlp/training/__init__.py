"""What the run_*.py scripts share: arguments, the trainer, metrics, and the care of an output folder."""
