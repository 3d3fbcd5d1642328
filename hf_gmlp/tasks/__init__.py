"""The training tasks, with a file for each."""

import os
from importlib import import_module


def run_task(task: str, argv: list[str] | None = None, program: str | None = None) -> None:
    """Train or evaluate.

    Args:
        task: The name of a module of this package, such as "mlm".
        argv: Recipes, then flags; by default, those of the command line.
        program: The command before the flags, for `--help` and the model card.
    """
    # This must be set before torch_xla is imported, which otherwise compiles a learning rate of 0, at the start of a
    # warm-up, as a constant.
    os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
    import_module(f".{task}", __name__).main(argv, program or f"hf-gmlp run {task}")
