"""The paper's tables, figures and experiments, beside your own runs. Run from a checkout of the repository."""

import argparse
import importlib
from pathlib import Path
from typing import Any

from transformers.utils import logging

from hf_gmlp import errors

MODEL = "folder or name of a trained model"


def main(argv: list[str] | None = None) -> None:
    """Run `python -m paper` with these arguments, or with those of the command line."""
    options = vars(parse_arguments(argv))
    # Each command imports only what it needs.
    module, function = options.pop("call").split(".")

    def call() -> None:
        if function != "run_script":
            logging.set_verbosity_error()
            logging.disable_progress_bar()
        getattr(importlib.import_module(f"{__package__}.{module}"), function)(**options)

    errors.run_command(call)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the flags of a command, with `call` naming the function to pass them to."""
    parser = argparse.ArgumentParser(prog="python -m paper", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(name: str, call: str, text: str, group: Any = commands) -> argparse.ArgumentParser:
        added = group.add_parser(name, help=text, description=text, allow_abbrev=False)
        added.set_defaults(call=call)
        return added

    text = "train or evaluate with a script of hf_gmlp, as `hf-gmlp run` does, and with the paper's baseline models"
    added = command("run", "__main__.run_script", text)
    added.add_argument("task", choices=("mlm", "clm", "glue", "qa", "image_classification"))
    added.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="recipes, then flags, of the script")

    several: dict[str, Any] = {"nargs": "+", "default": [], "metavar": "PATH"}
    runs = several | {"help": "folders with finished runs (default: only the paper's numbers)"}
    added = command("table", "tables.print_table", "print a table of the paper with this project's numbers")
    added.add_argument("number", type=int, help="1 to 10, as in the paper")
    added.add_argument("--runs", **runs)
    text = "draw a figure of the paper from finished runs or from a trained model"
    plots = commands.add_parser("plot", help=text, description=text)
    figures = plots.add_subparsers(title="figures", metavar="FIGURE", required=True)
    for kind, text in (
        ("capacity", "accuracy of image models against their size (Figure 2)"),
        ("scaling", "perplexity and accuracy of text models against their size (Figures 5 and 8)"),
        ("transfer", "accuracy after fine-tuning against perplexity (Figure 7)"),
    ):
        added = command(kind, "scaling.plot", text, figures)
        added.set_defaults(kind=kind)
        added.add_argument("--runs", **runs)
        added.add_argument("--paper", action="store_true", help="also draw the points of the paper's Table 4 (hollow)")
    added = command("filters", "filters.plot", "spatial filters of every block (Figures 3 and 4)", figures)
    added.add_argument("checkpoint", help=MODEL)
    added.add_argument("--max_layers", type=int, help="maximum number of blocks or heads (default: 36; images: 12)")
    added = command("matrices", "toeplitz.plot", "spatial matrices, and how Toeplitz they are (Figure 9)", figures)
    added.add_argument("checkpoint", help=MODEL)
    added = command("attention", "attention.plot", "tiny attention over a sentence or a pair (Figure 10)", figures)
    added.add_argument("checkpoint", help=MODEL)
    added.add_argument("--sentences", nargs="+", required=True, metavar="SENTENCE", help="one, or a pair")
    for kind, added in figures.choices.items():
        added.add_argument("--output", default=f"{kind}.png", help="image file to write (default: %(default)s)")

    added = command("replicate", "replicate.replicate", "pretrain the models of Table 3 and others at a small size")
    added.add_argument("--train_file", **several, help="text to train on (default: Python's documentation of itself)")
    added.add_argument("--validation_file", **several, help="text to evaluate on (default: 1/20 of the training text)")
    added.add_argument("--size", choices=("tiny", "small", "gpu"), default="small")
    added.add_argument("--jobs", type=int, default=2, help="number of parallel trainings (default: %(default)s)")
    added.add_argument("--output_dir", type=Path, help="default: build/replicate-SIZE")
    added = command("report", "report.rewrite", "rewrite the report of a replication from results.json")
    added.add_argument("results", type=Path)
    added.add_argument("folder", type=Path)
    added.add_argument("pages", type=Path, nargs="*")
    return parser.parse_args(argv)


def run_script(task: str, words: list[str]) -> None:
    """Train or evaluate as `hf-gmlp run` does, with the paper's baseline models and their presets.

    Args:
        task: "mlm", "glue", "qa", "clm" or "image_classification".
        words: Recipes, then flags.
    """
    from hf_gmlp import tasks

    from . import models  # noqa: F401  # registers them

    tasks.run_task(task, words, f"python -m paper run {task}")


if __name__ == "__main__":
    main()
