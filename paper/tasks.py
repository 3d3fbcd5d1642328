"""Run the training scripts of hf_gmlp with the paper's baseline models and their presets."""

import sys

from hf_gmlp import tasks

from . import models  # noqa: F401  # registers them


def run(task: str, words: list[str]):
    """Train or evaluate as `hf-gmlp run` does.

    Args:
        task: "mlm", "glue", "qa", "clm" or "image_classification".
        words: Recipes, then flags.
    """
    # The help text and the model card show this command.
    sys.argv = [f"python -m paper run {task}", *words]
    tasks.run(task)
