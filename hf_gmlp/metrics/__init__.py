"""Metrics as modules of the `evaluate` library, loaded from this folder without a network."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import evaluate


@cache
def load_metric(name: str) -> "evaluate.EvaluationModule":
    """Return a metric of classification.py, such as "accuracy"."""
    import evaluate

    # Without `keep_in_memory`, every call writes a file, under a lock that all runs on the machine share.
    return evaluate.load(str(Path(__file__).parent / "classification"), name, keep_in_memory=True)
