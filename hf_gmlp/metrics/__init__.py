"""Metrics as modules of the `evaluate` library, loaded from this folder without a network."""

from pathlib import Path

import evaluate


def load_metric(name: str) -> evaluate.EvaluationModule:
    """Returns a metric of this folder, such as "accuracy"; a ValueError if there is no such metric."""
    path = Path(__file__).parent / name / f"{name}.py"
    if not path.is_file():
        known = sorted(module.stem for module in Path(__file__).parent.glob("*/*.py"))
        raise ValueError(f"There is no metric {name!r}; there are {', '.join(known)}.")
    # In memory: otherwise every call writes a file, under a lock that runs on the same machine share.
    return evaluate.load(str(path), keep_in_memory=True)
