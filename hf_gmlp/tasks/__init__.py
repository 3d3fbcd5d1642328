"""The training tasks, with a file for each."""

import os
from importlib import import_module


def run_task(task: str) -> None:
    """Train or evaluate with the flags of the command line, `sys.argv`.

    Args:
        task: The name of a module of this package, such as "mlm".
    """
    # This must be set before torch_xla is imported, which otherwise compiles a learning rate of 0, at the start of a
    # warm-up, as a constant.
    os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
    import_module(f".{task}", __name__).main()
