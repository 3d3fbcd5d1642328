"""Metrics as modules of the `evaluate` library, loaded from this folder without a network."""

from pathlib import Path

import evaluate


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Return a metric of classification.py, such as "accuracy"; a ValueError if there is no such metric."""
    # In memory: otherwise every call writes a file, under a lock that runs on the same machine share.
    return evaluate.load(str(Path(__file__).parent / "classification"), name, keep_in_memory=True)
