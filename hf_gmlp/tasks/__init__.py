"""The training tasks, a folder each: run.py is what happens between the command line and the report."""

from importlib import import_module

from ..errors import OPTIONAL, need


def run(task: str):
    """Train or evaluate with the flags of the command line, `sys.argv`.

    Args:
        task: The folder of the task: "mlm", "clm", "glue", "qa" or "image_classification".
    """
    need(*OPTIONAL["hf-gmlp[train]"])
    import_module(f".{task}.run", __name__).main()
