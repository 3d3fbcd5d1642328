"""Metrics as modules of the `evaluate` library: `evaluate.load` reads them from here, so no network is needed."""

from pathlib import Path

import evaluate


def load_metric(name: str) -> evaluate.EvaluationModule:
    """
    A metric of this folder, ready for `compute(predictions=..., references=...)`.

    Args:
        name: A folder here, such as "accuracy".

    Raises:
        ValueError: If there is no such metric.
    """
    path = Path(__file__).parent / name / f"{name}.py"
    if not path.is_file():
        known = sorted(module.stem for module in Path(__file__).parent.glob("*/*.py"))
        raise ValueError(f"There is no metric {name!r}; there are {', '.join(known)}.")
    # In memory: otherwise every call writes a file, under a lock that several runs on a machine would wait for.
    return evaluate.load(str(path), keep_in_memory=True)
