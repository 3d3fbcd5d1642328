"""The training tasks, a folder each: run.py is what happens between the command line and the report."""

import os
from importlib import import_module

from ..errors import OPTIONAL, need


def run(task: str):
    """Train or evaluate with the flags of the command line, `sys.argv`.

    Args:
        task: The folder of the task: "mlm", "clm", "glue", "qa" or "image_classification".
    """
    # Before torch_xla is imported. It would compile a learning rate of 0, at the start of a warm-up, as a constant.
    os.environ.setdefault("XLA_NO_SPECIAL_SCALARS", "1")
    need(*OPTIONAL["hf-gmlp[train]"])
    import_module(f".{task}.run", __name__).main()
