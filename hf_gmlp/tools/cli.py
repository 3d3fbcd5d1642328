"""The command `hf-gmlp`: for each sub-command, a function that adds its arguments and one that runs it.

A command imports its packages when it runs, so that it needs only the extras of its own.
"""

import argparse
import importlib
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from importlib.util import find_spec
from logging import NOTSET, WARNING, disable

from transformers.utils import logging

from .. import errors
from .._version import __version__
from ..errors import InputError
from .listings import list_recipes, show_presets

MODEL = "folder or name of a trained model"


def main(argv: list[str] | None = None):
    """Run `hf-gmlp` with these arguments, or with those of the command line."""
    options = vars(make_parser().parse_args(argv))
    function = options.pop("function")
    errors.run(lambda: function(**options))


def make_parser() -> ArgumentParser:
    """Return the parser of the command and its sub-commands, each with its `function`."""
    parser = ArgumentParser(prog="hf-gmlp", description="gMLP and aMLP for Hugging Face Transformers.")
    parser.add_argument("--version", action="version", version=f"hf-gmlp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run_arguments(commands.add_parser("run", help="train, fine-tune or evaluate: run SCRIPT --help"))
    text = "train a classifier on your own texts: classify --help"
    # All of its words, "--help" too, are for the script.
    classify_arguments(commands.add_parser("classify", help=text, prefix_chars="\0", add_help=False))
    predict_arguments(commands.add_parser("predict", help="classify new texts or pictures, or answer questions"))
    recipes = commands.add_parser("recipes", help="list the YAML files of flags that `hf-gmlp run` takes")
    recipes.set_defaults(function=list_recipes)
    presets_arguments(commands.add_parser("presets", help="list the architectures of the paper, or show one"))
    tokenizer_arguments(commands.add_parser("train-tokenizer", help="train a tokenizer on files or on a data set"))
    plot_arguments(commands.add_parser("plot", help="plot what a model has learned"))
    serve_arguments(commands.add_parser("serve", help="try a model in the browser"))
    convert_arguments(commands.add_parser("convert", help="convert weights of other projects, or weights for timm"))
    export_arguments(commands.add_parser("export", help="export to ONNX or OpenVINO"))
    return parser


def quiet():
    """Hide the progress bars and warnings of transformers."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()


def run_arguments(parser: ArgumentParser):
    parser.add_argument("script", choices=("mlm", "clm", "glue", "qa", "image_classification"))
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="recipes, then flags, of the script")
    parser.set_defaults(function=run)


def run(script: str, words: list[str], command: str | None = None):
    # For its help and the model card.
    sys.argv = [command or f"hf-gmlp run {script}", *words]
    from ..tasks import run

    run(script)


def classify_arguments(parser: ArgumentParser):
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="flags of `hf-gmlp run glue`")
    parser.set_defaults(function=classify)


def classify(words: list[str]):
    run("glue", ["recipes/classify.yaml", *words], "hf-gmlp classify")


def predict_arguments(parser: ArgumentParser):
    parser.add_argument("model", help=MODEL)
    files = "csv, tsv, jsonl (also .gz), json of questions, a text file with one text per line, or a folder of pictures"
    parser.add_argument("data", metavar="FILE_OR_FOLDER", help=files)
    parser.add_argument("--output", required=True, metavar="FILE", help="csv file to write")
    parser.add_argument("--text_column_names", nargs="+", metavar="NAME", help="text column, or the two of a pair")
    parser.add_argument("--label_column_name", metavar="NAME", help="column of labels to compare with, if there is one")
    parser.add_argument("--top_k", type=int, default=3, metavar="N", help="classes or answers of a row (default: 3)")
    parser.add_argument("--batch_size", type=int, default=32, metavar="N", help="rows per batch (default: 32)")
    onnx = "run the model that `hf-gmlp export MODEL MODEL --to onnx` wrote into its folder"
    parser.add_argument("--onnx", action="store_true", help=onnx)
    parser.set_defaults(function=predict)


def predict(**options):
    # They come with pandas, which reads and writes the rows.
    errors.need("datasets", "evaluate")
    quiet()
    from .predict import predict

    predict(**options)


def presets_arguments(parser: ArgumentParser):
    parser.add_argument("name", nargs="?", help="a preset to show in full")
    parser.add_argument("--count", action="store_true", help="count parameters and FLOPs beside the paper's numbers")
    parser.set_defaults(function=show_presets)


def tokenizer_arguments(parser: ArgumentParser):
    source = parser.add_argument_group("text to train on (either files or a data set)")
    kinds = "txt, json, jsonl, csv, tsv or parquet, also compressed (gz, bz2, xz, zst)"
    source.add_argument("files", nargs="*", metavar="FILES", help=kinds)
    source.add_argument("--dataset_name", metavar="NAME", help="a data set on the Hub, such as allenai/c4")
    source.add_argument("--dataset_config_name", metavar="NAME", help="its configuration, such as en")
    source.add_argument("--split", default="train", help="its split (default: train)")
    source.add_argument("--streaming", action="store_true", help="read it over the network instead of downloading it")
    source.add_argument("--text_column", default="text", metavar="NAME", help="column of the text (default: text)")
    source.add_argument("--max_samples", type=int, metavar="N", help="stop after N texts (default: read all)")

    options = parser.add_argument_group("tokenizer")
    options.add_argument("--lowercase", action="store_true", help="lowercase the text, as in bert-base-uncased")
    options.add_argument("--vocab_size", type=int, default=32000, metavar="N", help="number of tokens (default: 32000)")
    text = "fraction of the characters that get their own token (default: 0.9995)"
    options.add_argument("--character_coverage", type=float, default=0.9995, metavar="N", help=text)
    options.add_argument("--max_length", type=int, default=512, metavar="N", help="truncate to N tokens (default: 512)")
    text = "train on a random sample of N lines; 0: on all lines (default: 10000000)"
    options.add_argument("--input_sentence_size", type=int, default=10_000_000, metavar="N", help=text)
    parser.add_argument("--output_dir", required=True, metavar="FOLDER", help="where to save the tokenizer")
    parser.set_defaults(function=train_tokenizer)


def train_tokenizer(**arguments):
    from .train_tokenizer import train

    names = ("lowercase", "vocab_size", "character_coverage", "max_length", "input_sentence_size")
    train(options={name: arguments.pop(name) for name in names}, **arguments)


def plot_arguments(parser: ArgumentParser):
    plots = parser.add_subparsers(title="plots", metavar="PLOT", required=True)
    filters = plots.add_parser("filters", help="spatial filters of every block (Figures 3 and 4)")
    filters.add_argument("--max_layers", type=int, help="maximum number of blocks or heads (default: 36; images: 12)")
    filters.set_defaults(draw=plot_filters)
    matrices = plots.add_parser("matrices", help="spatial matrices, and how Toeplitz they are (Figure 9)")
    matrices.add_argument("--max_layers", type=int, default=36, help="maximum number of blocks or heads (default: 36)")
    matrices.set_defaults(draw=plot_matrices)
    attention = plots.add_parser("attention", help="tiny attention over one sentence or a pair (Figure 10)")
    attention.add_argument("--sentences", nargs="+", required=True, metavar="SENTENCE", help="one, or a pair")
    attention.set_defaults(draw=plot_attention)
    for name, added in plots.choices.items():
        added.add_argument("checkpoint", help=MODEL)
        added.add_argument("--output", default=f"{name}.png", help="the picture to write (default: %(default)s)")
        added.set_defaults(function=plot)


def plot(draw: Callable, output: str, **options):
    quiet()
    draw(output=output, **options)
    print(f"The picture is in {output}.")


def plot_filters(checkpoint: str, max_layers: int | None, output: str):
    from .analysis.filters import load_spatial_model, plot_filters

    plot_filters(load_spatial_model(checkpoint), output, max_layers=max_layers)


def plot_matrices(checkpoint: str, max_layers: int, output: str):
    from .analysis.filters import head_names, load_spatial_model
    from .analysis.toeplitz import plot_matrices

    model = load_spatial_model(checkpoint)
    fractions, chance = plot_matrices(model, output, max_layers=max_layers)
    names = head_names(model)
    for name, fraction in zip(names, fractions):
        print(f"{name:<{len(names[-1])}}  {fraction:.4f}")
    print(f"mean {sum(fractions) / len(fractions):.4f}, of random weights {chance:.4f}")


def plot_attention(checkpoint: str, sentences: list[str], output: str):
    from .analysis.attention import load_attentive_model, plot_attention

    if len(sentences) > 2:
        raise InputError(f"Pass one sentence or two, each in quotation marks, got {len(sentences)}.")
    second = sentences[1] if len(sentences) == 2 else None
    plot_attention(*load_attentive_model(checkpoint), sentences[0], second, output)


def serve_arguments(parser: ArgumentParser):
    parser.add_argument("checkpoint", help=MODEL)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="0 picks a free port (default: 8000)")
    parser.set_defaults(function=serve)


def serve(**options):
    if find_spec("gradio") is None:
        raise InputError('Serving needs gradio: pip install "hf-gmlp[serve]".')
    print(f"Loading {options['checkpoint']} ...", flush=True)
    quiet()
    from .serve import serve

    serve(**options)


def convert_arguments(parser: ArgumentParser):
    conversions = parser.add_subparsers(title="conversions", metavar="CONVERSION", required=True, dest="kind")
    timm = conversions.add_parser("timm", help="a gMLP of timm -> image classifier")
    lucidrains = conversions.add_parser("lucidrains", help="a gMLP of g-mlp-pytorch -> text or image model")
    labml = conversions.add_parser("labml", help="a gMLP of labml_nn -> causal language model")
    for added in (timm, lucidrains, labml):
        added.add_argument("source", help="file of weights (timm: or the name of a model, to download its weights)")
        added.add_argument("out", help="folder to write: config, weights, code, card (images: image processor)")
        added.add_argument("--license", help="identifier of the license of the weights, for the card")
    lucidrains.add_argument("--causal", action="store_true", help="the model was made with causal=True")
    to_timm = conversions.add_parser("to-timm", help='image classifier with pooling="mean" -> weights for timm')
    to_timm.add_argument("checkpoint", help=MODEL)
    to_timm.add_argument("out", help="file to write, .safetensors")
    parser.set_defaults(function=convert)


def convert(kind: str, **options):
    quiet()
    # A conversion must not need the packages of another.
    module = importlib.import_module(f".conversion.{kind.removeprefix('to-')}", __package__)
    function = getattr(module, f"convert_{kind.replace('-', '_')}")
    print(*function(**options), sep="\n")


def export_arguments(parser: ArgumentParser):
    parser.add_argument("checkpoint", help=MODEL)
    parser.add_argument("out", help="a new folder, or the folder of the checkpoint, which gets a subfolder")
    parser.add_argument("--to", required=True, choices=("onnx", "openvino"))
    parser.add_argument("--int8", action="store_true", help="write a program with 8-bit weights too")
    text = "print the accuracy on a file of texts with a column 'label', or on a folder of class folders of images"
    parser.add_argument("--eval_file", metavar="PATH", help=text)
    parser.set_defaults(function=export)


def export(**options):
    quiet()
    # The exporters and quantizers warn of their own code.
    disable(WARNING)
    try:
        from .export import export

        lines = export(**options)
    except ImportError as error:
        advice = 'pip install "hf-gmlp[export]", with transformers 5.23 or newer'
        raise InputError(f"Exporting needs packages that are missing ({error}): {advice}.") from error
    finally:
        disable(NOTSET)
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
