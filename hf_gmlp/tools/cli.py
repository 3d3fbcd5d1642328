"""The command `hf-gmlp`.

Nothing here may import torch or transformers before a command needs them: they take seconds, and every help screen, the
presets and the recipes are printed without them (tests/test_cli.py).
"""

import argparse
import importlib
import json
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .. import errors
from .._version import __version__
from ..errors import InputError
from ..presets import PRESETS, preset_path
from ..training.files import COMPRESSIONS, FILE_KINDS


def main(argv: list[str] | None = None):
    """Runs `hf-gmlp` with the given arguments, or with those of the command line."""
    parser = argparse.ArgumentParser(prog="hf-gmlp", description="gMLP and aMLP for Hugging Face Transformers.")
    parser.add_argument("--version", action="version", version=f"hf-gmlp {__version__}")
    add_commands(parser, "command", COMMANDS)
    options = vars(parser.parse_args(argv))
    function = options.pop("function")

    def command():
        if function not in (presets, recipes):
            register_models()
        function(**options)

    errors.run(command)


def register_models():
    """Makes the Auto classes know the models, as `import hf_gmlp` does outside of this command."""
    importlib.import_module("hf_gmlp.registration")


def add_commands(parser: argparse.ArgumentParser, kind: str, commands: dict):
    """Adds a table of commands: what `command` returns by name, or for sub-commands their help and their table."""
    parsers = parser.add_subparsers(title=f"{kind}s", metavar=kind.upper(), required=True)
    for name, (function, words, arguments) in commands.items():
        added = parsers.add_parser(name, help=words)
        if function is None:
            add_commands(added, name, arguments)
            continue
        for argument in arguments:
            argument(added)
        if kind == "plot":
            added.add_argument("--output", default=f"{name}.png", help="the picture to write (default: %(default)s)")
            function = partial(plot, partial(plot_runs, name) if function is plot_runs else function)
        elif kind == "convert":
            function = partial(convert, name.replace("-", "_"))
        added.set_defaults(function=function)


def run_task(script: str, words: list[str]):
    """Runs a training script."""
    # For its help and the model card.
    sys.argv = [f"hf-gmlp run {script}", *words]
    from ..tasks import run

    run(script)


def recipes():
    """Lists the recipes, each with the first line of its description."""
    from ..training.recipes import RECIPES

    root = RECIPES.parent
    for folder in (RECIPES, root / "paper" / "recipes"):
        for path in sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
            about = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            print(f"{path.relative_to(root).as_posix():<48} {textwrap.shorten(about, 71, placeholder=' ...')}")
    print(f"\nfolder: {root}")


def presets(name: str | None, count: bool, export: str | None):
    """Lists the presets, shows one, or exports one."""
    if name is not None and name not in PRESETS:
        raise InputError(f"There is no preset {name!r}. Choose one of: {', '.join(PRESETS)}.")
    if export is not None:
        if name is None:
            raise InputError("Say which preset to export: hf-gmlp presets NAME --export DIR.")
        if Path(export).exists():
            raise InputError(f"{export} already exists. Choose a new folder.")
        register_models()
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(preset_path(name))
        config.save_pretrained(export)
        code = " with --trust_remote_code" if hasattr(config, "auto_map") else ""
        print(f"{name} is in {export}: use it as --config_name{code}.")
        return
    header = f"{'name':<25}{'paper':<15}{'L':>4}{'d_model':>8}{'d_ffn':>6}{'n':>5}{'attn':>5}{'params':>9}{'FLOPs':>10}"
    print(header + (f"{'counted':>10}{'counted':>11}" if count else ""))
    for preset in PRESETS.values() if name is None else [PRESETS[name]]:
        fields = json.loads((preset_path(preset.name) / "config.json").read_text(encoding="utf-8"))
        # All image models have a [CLS] token.
        tokens = fields.get("max_position_embeddings") or (fields["image_size"] // fields["patch_size"]) ** 2 + 1
        full = fields["model_type"] in ("bert", "bert_relpos", "vit") and fields.get("content_attention", True)
        attention = "full" if full else fields.get("attention_size") or "-"
        sizes = f"{fields['num_hidden_layers']:>4}{fields['hidden_size']:>8}{fields['intermediate_size']:>6}{tokens:>5}"
        flops = f"{preset.flops:.1f} B" if preset.flops else "-"
        paper = f"{attention:>5}{preset.parameters:>7g} M{flops:>10}"
        print(f"{preset.name:<25}{preset.paper:<15}{sizes}{paper}{counted(preset.name) if count else ''}")
    if name is None:
        print("\nparams and FLOPs (of one forward pass) as the paper prints them; --count adds those of these models.")
    else:
        folder = preset_path(name)
        note = f"\n{PRESETS[name].note}\n" if PRESETS[name].note else ""
        print(f"{note}\n{(folder / 'config.json').read_text(encoding='utf-8').strip()}\n\nfolder: {folder}")


def counted(preset: str) -> str:
    """Counts parameters and FLOPs of a preset, as two columns."""
    register_models()
    from transformers import AutoConfig

    from .analysis.counts import paper_flops, paper_parameters

    config = AutoConfig.from_pretrained(preset_path(preset), num_labels=1000)
    return f"{paper_parameters(config) / 1e6:>8.2f} M{paper_flops(config) / 1e9:>9.1f} B"


def quiet():
    """Hides transformers' progress bars and its warnings about heads that are not loaded."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def perplexity(word: str) -> float:
    if not 1 < float(word) < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not a perplexity: it must be above 1")
    return float(word)


def plot(draw: Callable, output: str, **options):
    draw(output=output, **options)
    print(f"The picture is in {output}.")


def plot_filters(checkpoint: str, max_layers: int | None, output: str):
    from .analysis.filters import load_spatial_model, plot_filters

    quiet()
    plot_filters(load_spatial_model(checkpoint), output, max_layers=max_layers)


def plot_matrices(checkpoint: str, max_layers: int | None, output: str):
    from .analysis.filters import head_names, load_spatial_model
    from .analysis.toeplitz import plot_matrices

    quiet()
    model = load_spatial_model(checkpoint)
    fractions, chance = plot_matrices(model, output, max_layers=36 if max_layers is None else max_layers)
    names = head_names(model)
    for name, fraction in zip(names, fractions):
        print(f"{name:<{len(names[-1])}}  {fraction:.4f}")
    print(f"mean {sum(fractions) / len(fractions):.4f}, of random weights {chance:.4f}")


def plot_attention(checkpoint: str, sentences: list[str], output: str):
    from .analysis.attention import load_attentive_model, plot_attention

    if len(sentences) > 2:
        raise InputError(f"Pass one sentence or two, each in quotation marks, got {len(sentences)}.")
    quiet()
    plot_attention(*load_attentive_model(checkpoint), *[*sentences, None][:2], output)


def paper_module(name: str):
    """Imports a module of paper/, which is not installed with the package."""
    folder = Path(__file__).parents[2] / "paper"
    if not (folder / f"{name}.py").is_file():
        words = "Tables of the paper, and its figures of runs (scaling, transfer, capacity), need"
        raise InputError(f"{words} a checkout of the repository.")
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def plot_runs(kind: str, runs: list[str] | None, output: str, **options):
    """Draws the paper's figures of runs, and prints the power laws of `plot scaling`."""
    scaling = paper_module("scaling")
    found = paper_module("runs").find_runs(runs) if runs else None
    laws = getattr(scaling, f"plot_{kind}")(output, found, **options)
    for name, law in (laws or {}).items():
        print(f"{name}: perplexity ~ parameters^({law.exponent:.3f} ± {law.error:.3f}), from {law.points} sizes")


def table(number: int, runs: list[str] | None, recipes: str | None, output: str | None):
    """Prints a table of the paper with this project's numbers, or writes it to a file."""
    tables = paper_module("tables")
    path = Path(output or "-").resolve()
    if output is not None and path.exists():
        raise InputError(f"{output} already exists. Choose a new file.")
    if not path.parent.is_dir():
        raise InputError(f"There is no folder {path.parent} to write the table to.")
    text = tables.table(number, runs or (), recipes)
    if output is None:
        return print(text, end="")
    path.write_text(text, encoding="utf-8")
    print(f"Table {number} is in {output}.")


def answer(checkpoint: str, question: list[str], context: str | None, context_file: str | None, top_k: int, **options):
    """Answers questions from a text, with the score and the place of every answer."""
    if context_file is not None:
        try:
            context = Path(context_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{context_file} cannot be read as text: {error}") from error
    if top_k < 1:
        raise InputError(f"--top_k must be at least 1, got {top_k}.")
    if not context.strip():
        raise InputError("The text is empty. Give a text with the answers.")
    from ..tasks.qa.answerer import QuestionAnswerer

    # At least two answers, so that they come as a list.
    answers = QuestionAnswerer(checkpoint)(question, context, top_k=max(2, top_k), **options)
    for words, ranked in zip(question, answers):
        print(words)
        for one in ranked[:top_k]:
            found = f"{one['answer']}  (characters {one['start']}-{one['end']})" if one["answer"] else "(no answer)"
            print(f"  {one['score']:.4f}  {found}")


def serve(**options):
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        raise InputError('Serving needs fastapi, uvicorn and openai: pip install "hf-gmlp[serve]".')
    from .serve import serve

    quiet()
    serve(**options)


def convert(name: str, **options):
    # A conversion must not need the packages of another.
    module = importlib.import_module(f".conversion.{name.removeprefix('to_')}", __package__)
    print(*getattr(module, f"convert_{name}")(**options), sep="\n")


def export(**options):
    try:
        from .export import export
    except ImportError as error:
        raise InputError(f"Exporting needs transformers 5.23 or newer ({error}).") from error

    quiet()
    print(*export(**options), sep="\n")


def train_tokenizer(**options):
    from . import train_tokenizer

    train_tokenizer.main(argparse.Namespace(**options))


def tokenizer_arguments(added: argparse.ArgumentParser):
    source = added.add_argument_group("text to train on (either files or a data set)")
    kinds = f"{', '.join(FILE_KINDS)}, each possibly compressed as {', '.join(COMPRESSIONS)}"
    source.add_argument("files", nargs="*", metavar="FILES", help=kinds)
    source.add_argument("--dataset_name", metavar="NAME", help="a data set on the Hub, such as allenai/c4")
    source.add_argument("--dataset_config_name", metavar="NAME", help="its configuration, such as en")
    source.add_argument("--split", default="train", help="its split (default: %(default)s)")
    source.add_argument("--streaming", action="store_true", help="read it over the network instead of downloading it")
    source.add_argument("--text_column", default="text", metavar="NAME", help="column of the text (default: text)")
    source.add_argument("--max_samples", type=int, metavar="N", help="stop after N texts (default: read all)")

    options = added.add_argument_group("tokenizer")
    kinds = ("unigram", "bpe")
    options.add_argument("--model_type", choices=kinds, default=kinds[0], help="default: %(default)s")
    text = "unknown characters become [UNK], not bytes"
    options.add_argument("--no_byte_fallback", dest="byte_fallback", action="store_false", help=text)
    options.add_argument("--lowercase", action="store_true", help="lowercase the text, as in bert-base-uncased")
    for name, default, text in (
        ("vocab_size", 32000, "number of tokens"),
        ("character_coverage", 0.9995, "share of the characters that get their own token"),
        ("max_length", 512, "truncate to N tokens"),
        ("input_sentence_size", 10_000_000, "train on a random sample of N lines; 0: on all lines"),
    ):
        text = f"{text} (default: %(default)s)"
        options.add_argument(f"--{name}", type=type(default), default=default, metavar="N", help=text)
    added.add_argument("--output_dir", required=True, metavar="FOLDER", help="where to save the tokenizer")


def context_arguments(added: argparse.ArgumentParser):
    source = added.add_mutually_exclusive_group(required=True)
    source.add_argument("--context", help="the text that has the answers")
    source.add_argument("--context_file", help="a file with that text, of any length")


def command(function: Callable, words: str, *arguments: Callable) -> tuple:
    return function, words, arguments


def arg(*names: str, **options):
    """An argument of a command: a function that adds it."""
    return lambda added: added.add_argument(*names, **options)


def flag(name: str, words: str):
    return arg(name, action="store_true", help=words)


SCRIPT = arg("script", choices=("mlm", "clm", "glue", "qa", "image_classification"), help="the script to run")
WORDS = arg("words", nargs=argparse.REMAINDER, metavar="...", help="recipes, then flags, of the script")
PRESET = arg("name", nargs="?", help="a preset to show in full")
COUNT = flag("--count", "count parameters and FLOPs beside the paper's numbers")
EXPORT = arg(
    "--export", metavar="DIR", help="write config and model code into a new folder, for scripts without hf_gmlp"
)
MODEL = arg("checkpoint", help="folder or name of a trained model")
LAYERS = arg("--max_layers", type=int, help="maximum number of blocks or heads (default: 36; filters of images: 12)")
SENTENCES = arg("--sentences", nargs="+", required=True, metavar="SENTENCE", help="one sentence or a pair")
RUNS = arg("--runs", nargs="+", metavar="DIR", help="folders with finished runs (default: only the paper's numbers)")
PAPER = flag("--paper", "draw the points of the paper's Table 4 too, hollow")
UNIGRAM = arg("--unigram", type=perplexity, metavar="X", help="perplexity of guessing by frequency, drawn as a level")
NUMBER = arg("number", type=int, help="1 to 10, as in the paper")
RECIPES = arg("--recipes", metavar="DIR", help="recipes to compare Tables 7 to 9 with (default: the project's)")
FILE = arg("--output", metavar="FILE", help="a new file to write instead of printing")
QUESTION = arg("--question", nargs="+", required=True, help="one or several questions")
TOP_K = arg("--top_k", type=int, default=1, help="answers to each question (default: %(default)s)")
IMPOSSIBLE = flag("--handle_impossible_answer", "the text may not have the answer")
THRESHOLD = arg("--null_score_diff_threshold", type=float, default=0.0, help="by which no answer must score higher")
HOST = arg("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
PORT = arg("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
WEIGHTS = arg("source", help="file of weights (timm: or the name of a model, to download its weights)")
CHECKPOINT = arg("out", help="folder to write: config, weights, code, card (images: image processor)")
LICENSE = arg("--license", help="identifier of the license of the weights, for the card")
PIXELS = arg("--image_size", nargs=2, type=int, metavar=("H", "W"), help="pixels, if images are not square")
CAUSAL = flag("--causal", "the model was made with causal=True, which the file does not tell")
TIMM = arg("out", help="file to write, .safetensors")
FOLDER = arg("out", help="a new folder, or the folder of the checkpoint, which gets a sub-folder")
TO = arg("--to", required=True, choices=("onnx", "openvino"))
TASK = arg("--task", help="fill-mask, feature-extraction, ... (default: what the model was saved as)")
INT8 = flag("--int8", "with --to onnx: write a model with weights of 8 bits too")

PLOTS = {
    "filters": command(plot_filters, "spatial filters of every block (Figures 3 and 4)", MODEL, LAYERS),
    "matrices": command(plot_matrices, "spatial matrices, and how Toeplitz they are (Figure 9)", MODEL, LAYERS),
    "attention": command(plot_attention, "tiny attention over one sentence or a pair (Figure 10)", MODEL, SENTENCES),
    "capacity": command(plot_runs, "image accuracy against parameters (Figure 2)", RUNS),
    "scaling": command(plot_runs, "perplexity and accuracies against size (Figures 5 and 8)", RUNS, PAPER, UNIGRAM),
    "transfer": command(plot_runs, "accuracies against perplexity (Figure 7)", RUNS, PAPER),
}
CONVERSIONS = {
    "timm": command(convert, "a gMLP of timm -> image classifier", WEIGHTS, PIXELS, CHECKPOINT, LICENSE),
    "lucidrains": command(
        convert, "a gMLP of g-mlp-pytorch -> text or image model", WEIGHTS, CAUSAL, PIXELS, CHECKPOINT, LICENSE
    ),
    "labml": command(convert, "a gMLP of labml_nn -> causal language model", WEIGHTS, CHECKPOINT, LICENSE),
    "to-timm": command(convert, 'image classifier with pooling="mean" -> weights for timm', MODEL, TIMM),
}
COMMANDS = {
    "run": command(run_task, "train, fine-tune or evaluate: run SCRIPT --help", SCRIPT, WORDS),
    "recipes": command(recipes, "list the YAML files of flags that `hf-gmlp run` takes"),
    "presets": command(presets, "list the architectures of the paper, or show one", PRESET, COUNT, EXPORT),
    "train-tokenizer": command(train_tokenizer, "train a tokenizer on files or on a data set", tokenizer_arguments),
    "plot": (None, "plot what a model has learned, or the results of runs", PLOTS),
    "table": command(table, "print a table of the paper with this project's numbers", NUMBER, RUNS, RECIPES, FILE),
    "answer": command(
        answer, "answer questions from a text", MODEL, QUESTION, context_arguments, TOP_K, IMPOSSIBLE, THRESHOLD
    ),
    "serve": command(serve, "try a model in the browser; a causal one also with OpenAI's clients", MODEL, HOST, PORT),
    "convert": (None, "convert weights of other projects, or weights for timm", CONVERSIONS),
    "export": command(export, "export to ONNX or OpenVINO", MODEL, FOLDER, TO, TASK, INT8),
}


if __name__ == "__main__":
    main()
