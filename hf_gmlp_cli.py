"""The command `hf-gmlp`.

This module is outside the package because importing hf_gmlp imports torch and transformers, which takes seconds. Help
and the list of recipes do not need them. Every other command imports its module when it runs, and so needs only its own
extras.
"""

import argparse
import importlib
import itertools
import logging
import re
import runpy
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).with_name("hf_gmlp")
ENCODING = "encoding of a text file, such as cp1252 (default: UTF-8)"
MODEL = "folder or name of a trained model"
SCRIPTS = ("mlm", "clm", "glue", "qa", "image_classification")


def main(argv: list[str] | None = None) -> None:
    """Run `hf-gmlp` with these arguments, or with those of the command line."""
    options = vars(make_parser().parse_args(argv))
    function = options.pop("function")
    if function is list_recipes:
        # Loaded by its path, since importing the package takes seconds.
        run_command = runpy.run_path(str(PACKAGE / "errors.py"))["run_command"]
    else:
        from hf_gmlp.errors import run_command
    run_command(lambda: function(**options))


def make_parser() -> ArgumentParser:
    """Return the parser of the command and its sub-commands, each with its `function`."""
    parser = ArgumentParser(prog="hf-gmlp", description="gMLP and aMLP for Hugging Face Transformers.")
    version = runpy.run_path(str(PACKAGE / "_version.py"))["__version__"]
    parser.add_argument("--version", action="version", version=f"hf-gmlp {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    script = commands.add_parser("run", help="train, fine-tune or evaluate: run SCRIPT --help")
    script.add_argument("script", choices=SCRIPTS)
    script.add_argument("argv", nargs=argparse.REMAINDER, metavar="...", help="recipes, then flags of the script")
    script.set_defaults(function=run_script)
    classify_arguments(commands.add_parser("classify", help="train a classifier on your own texts or pictures"))
    predict_arguments(commands.add_parser("predict", help="classify new texts or pictures, or answer questions"))
    recipes = commands.add_parser("recipes", help="list the YAML files of flags for `hf-gmlp run`")
    recipes.set_defaults(function=list_recipes)
    presets = commands.add_parser("presets", help="list the named architectures, or show one")
    presets.add_argument("name", nargs="?", help="a preset to show in full")
    presets.set_defaults(function=tool("presets", "show_presets"))
    serve_arguments(commands.add_parser("serve", help="try a model in the browser"))
    convert_arguments(commands.add_parser("convert", help="convert weights of other projects"))
    export_arguments(commands.add_parser("export", help="export to ONNX or OpenVINO"))
    return parser


def tool(module: str, function: str) -> Callable:
    """Return a function that imports a function of hf_gmlp, calls it, and prints the lines that it returns."""

    def call(**options: Any) -> None:
        from transformers.utils import logging as transformers_logging

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        for line in getattr(importlib.import_module(f"hf_gmlp.{module}"), function)(**options) or []:
            print(line)

    return call


def list_recipes() -> None:
    """Print the recipes, each with the first sentence of its description."""
    # An installed package contains the recipes; in a checkout, they are beside it.
    root = PACKAGE if (PACKAGE / "recipes").is_dir() else PACKAGE.parent
    for path in [*sorted(root.glob("recipes/*.yaml")), *sorted(root.glob("paper/recipes/*/*.yaml"))]:
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = " ".join(line.lstrip("# ") for line in itertools.takewhile(lambda line: line[:1] == "#", lines))
        print(path.relative_to(root).as_posix(), re.split(r"(?<=\.) ", comment)[0], sep="\n    ")
    print(f"\nfolder: {root}")


def run_script(script: str, argv: list[str]) -> None:
    from hf_gmlp.tasks import run_task

    run_task(script, argv)


def classify_arguments(parser: ArgumentParser) -> None:
    parser.description = (
        "Train a classifier on a file of texts or a folder of pictures, in seconds on the embeddings of an encoder, "
        "and report how good it is. Repeat an interrupted command to continue. To use the result: hf-gmlp predict."
    )
    parser.usage = "hf-gmlp classify MODEL FILE_OR_FOLDER --output FOLDER [FLAGS]"
    # A flag that is not passed has the default of `Classifier`.
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument("model", metavar="MODEL", help="folder or name of a checkpoint, such as gmlp-mini-sentences")
    files = "csv, tsv, json, jsonl or parquet, also compressed, or a folder with a folder of pictures for each class"
    parser.add_argument("data", metavar="FILE_OR_FOLDER", help=files)
    parser.add_argument("--output", required=True, metavar="FOLDER", help="new folder for the model and the report")
    join = "text column, or several whose texts are joined in this order"
    columns = parser.add_mutually_exclusive_group()
    columns.add_argument("--text_column_names", nargs="+", metavar="NAME", help=join)
    columns.add_argument(
        "--pair_column_names", nargs=2, metavar="NAME", help="two columns to compare, as in entailment"
    )
    parser.add_argument("--label_column_name", metavar="NAME", help="column of the labels")
    parser.add_argument("--drop_unlabeled", action="store_true", help="leave out rows without a label")
    parser.add_argument("--validation_data", metavar="FILE_OR_FOLDER", help="data for the scores, of the same form")
    parser.add_argument("--encoding", help=ENCODING)
    tuned = "true: train all weights; false: only a classifier on the frozen encoder (default: by model and rows)"
    parser.add_argument("--fine_tune", type=boolean, metavar="true|false", help=tuned)
    parser.add_argument("--max_seq_length", type=int, metavar="N", help="tokens used of a text (default: 512)")
    folds = "folds that score all rows; 0: none (default: 5 on a frozen encoder, 0 with fine-tuning)"
    parser.add_argument("--cross_validation", type=int, metavar="N", help=folds)
    parser.add_argument("--class_weights", choices=("balanced",), help="weight classes by the inverse of their rows")
    calibrate = "false: leave the probabilities as they are (default: true)"
    parser.add_argument("--calibrate", type=boolean, metavar="true|false", help=calibrate)
    parser.add_argument("--num_train_epochs", type=float, metavar="N", help="epochs of fine-tuning")
    parser.add_argument("--max_steps", type=int, metavar="N", help="steps of fine-tuning, instead of epochs")
    parser.add_argument("--learning_rate", type=float, metavar="RATE", help="largest learning rate of fine-tuning")
    parser.add_argument("--batch_size", type=int, metavar="N", help="rows at once (default: 32)")
    parser.add_argument("--seed", type=int, metavar="N", dest="random_state", help="seed of splits and training")
    dtype_argument(parser)
    parser.add_argument("--trust_remote_code", action="store_true", help="run code of the checkpoint")
    parser.add_argument("--push_to_hub", action="store_true", help="push the model to the Hub, without any rows")
    parser.add_argument("--hub_model_id", metavar="NAME", help="repository to push to (default: the output folder's)")
    for flag in ("--model_name_or_path", "--train_file", "--output_dir"):
        parser.add_argument(flag, type=earlier_form, help=argparse.SUPPRESS)
    parser.set_defaults(function=tool("classify.command", "classify"), argv=sys.argv[1:])


def earlier_form(value: str) -> None:
    raise argparse.ArgumentTypeError("the command is now hf-gmlp classify MODEL FILE_OR_FOLDER --output FOLDER")


def boolean(text: str) -> bool:
    """Return the value of "true" or "false"."""
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"true or false, got {text}")
    return text.lower() == "true"


def dtype_argument(parser: ArgumentParser) -> None:
    types = "type to compute in (default: auto, bfloat16 where the processor or GPU multiplies it fast)"
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help=types)


def predict_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help=f"{MODEL}, or folder of an ONNX export, whose program is then used")
    files = "csv, tsv, json, jsonl, parquet or txt (one text per line), also compressed, or a folder of pictures"
    parser.add_argument("data", metavar="FILE_OR_FOLDER", help=files)
    parser.add_argument("--output", required=True, metavar="FILE", help="csv or jsonl file to write")
    parser.add_argument("--text_column_names", nargs="+", metavar="NAME", help="text column, or the two of a pair")
    parser.add_argument("--label_column_name", metavar="NAME", help="column of labels to compare with, if there is one")
    parser.add_argument("--top_k", type=int, default=3, metavar="N", help="classes or answers per row (default: 3)")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows per batch (default: 32)")
    length = "tokens used of a text; a Toeplitz W can use more than in training (default: as in training)"
    parser.add_argument("--max_seq_length", type=int, metavar="N", help=length)
    negative = "allow an empty answer, for a model of questions without an answer (SQuAD v2.0)"
    parser.add_argument("--version_2_with_negative", action="store_true", help=negative)
    parser.add_argument("--encoding", help=ENCODING)
    dtype_argument(parser)
    parser.set_defaults(function=tool("tools.predict", "predict"))


def serve_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", help=MODEL)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port (default: 8000)")
    dtype_argument(parser)
    parser.set_defaults(function=tool("tools.serve", "serve"))


def convert_arguments(parser: ArgumentParser) -> None:
    conversions = parser.add_subparsers(title="conversions", metavar="CONVERSION", required=True)
    conversions.add_parser("timm", help="a gMLP of timm -> image classifier")
    lucidrains = conversions.add_parser("lucidrains", help="a gMLP of g-mlp-pytorch -> text or image model")
    for name, conversion in conversions.choices.items():
        conversion.add_argument("source", help="file of weights, or for timm also the name of a model to download")
        conversion.add_argument("out", help="folder to write: config, weights, code, card (images: image processor)")
        conversion.add_argument("--license", help="identifier of the license of the weights, for the card")
        conversion.set_defaults(function=tool("tools.conversion", f"convert_{name}"))
    lucidrains.add_argument("--causal", action="store_true", help="the model was made with causal=True")


def export_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("checkpoint", help=MODEL)
    parser.add_argument("out", help="a new folder")
    parser.add_argument("--to", required=True, choices=("onnx", "openvino"))
    parser.add_argument("--int8", action="store_true", help="also write a program with 8-bit weights")
    parser.set_defaults(function=run_export)


def run_export(**options) -> None:
    # The exporters and quantizers log warnings about their own code.
    logging.disable(logging.WARNING)
    try:
        tool("tools.export", "export")(**options)
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
