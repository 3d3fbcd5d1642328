"""Metrics as modules of the `evaluate` library, loaded from this folder without a network."""

from pathlib import Path

import evaluate


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Return a metric of classification.py, such as "accuracy"."""
    # Without `keep_in_memory`, every call writes a file, under a lock that all runs on the machine share.
    return evaluate.load(str(Path(__file__).parent / "classification"), name, keep_in_memory=True)
