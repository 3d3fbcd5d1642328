"""The command `hf-gmlp`."""

import argparse
import importlib
import sys
import textwrap
from pathlib import Path

from . import errors
from ._version import __version__
from .errors import InputError


def main(argv: list[str] | None = None):
    """Runs `hf-gmlp` with the given words, or with those of the command line."""
    parser = argparse.ArgumentParser(
        prog="hf-gmlp",
        description="gMLP and aMLP for Hugging Face Transformers.",
    )
    parser.add_argument("--version", action="version", version=f"hf-gmlp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser("run", help="train, fine-tune or evaluate: run SCRIPT --help")
    scripts = ("mlm", "clm", "glue", "qa", "image_classification")
    command.add_argument("script", choices=scripts, help="the module of hf_gmlp.scripts to run")
    command.add_argument("words", nargs=argparse.REMAINDER, metavar="...", help="recipes, then flags, of the script")
    command.set_defaults(run=run)

    command = commands.add_parser("recipes", help="list the YAML files of flags that `hf-gmlp run` takes")
    command.set_defaults(run=recipes)

    command = commands.add_parser("presets", help="list the architectures of the paper, or show one")
    command.add_argument("name", nargs="?", help="a preset to show in full")
    command.add_argument("--count", action="store_true", help="count parameters and FLOPs beside the paper's numbers")
    command.add_argument(
        "--export",
        metavar="DIR",
        help="write config and model code into a new folder, for scripts that know nothing of hf_gmlp "
        "(--config_name DIR --trust_remote_code)",
    )
    command.set_defaults(run=presets)

    command = commands.add_parser("train-tokenizer", help="train a SentencePiece tokenizer on files or on a data set")
    # Importing the training stack takes seconds: only where it is needed.
    from .data import tokenizer

    tokenizer.add_arguments(command)
    command.set_defaults(run=tokenizer.main)

    command = commands.add_parser("plot", help="draw what a model has learned")
    plots = command.add_subparsers(title="plots", metavar="PLOT", required=True)
    plot = plots.add_parser("filters", help="spatial filters of every block (paper, Figures 3 and 4)")
    plot.add_argument("checkpoint", help="folder or name of a trained model, for text or for images")
    plot.add_argument("--max_layers", type=int, help="blocks drawn, evenly spread (default: 36; 12 for images)")
    plot.set_defaults(run=plot_filters, output="filters.png")
    plot = plots.add_parser("matrices", help="whole spatial matrices, and how Toeplitz they are (paper, Figure 9)")
    plot.add_argument("checkpoint", help="folder or name of a trained model, best one with toeplitz=false")
    plot.add_argument("--max_layers", type=int, default=36, help="blocks drawn, evenly spread (default: %(default)s)")
    plot.set_defaults(run=plot_matrices, output="matrices.png")
    plot = plots.add_parser("attention", help="tiny attention of an aMLP over a pair of sentences (paper, Figure 10)")
    plot.add_argument("checkpoint", help="folder or name of a trained aMLP for text")
    plot.add_argument("--sentences", nargs="+", required=True, metavar="SENTENCE", help="a pair of sentences, or one")
    plot.set_defaults(run=plot_attention, output="attention.png")
    plot = plots.add_parser("capacity", help="image accuracy against parameters (paper, Figure 2)")
    plot.add_argument("--runs", nargs="+", metavar="DIR", help="folders with runs of run_image_classification.py")
    plot.set_defaults(run=plot_capacity, output="capacity.png")
    unigram = "perplexity of predicting every token by its frequency alone, drawn as a level"
    for name, title in (
        ("scaling", "perplexity and accuracies against parameters, with power laws (paper, Figures 5 and 8)"),
        ("transfer", "accuracies against the perplexity of pretraining (paper, Figure 7)"),
    ):
        plot = plots.add_parser(name, help=title)
        plot.add_argument(
            "--runs",
            nargs="+",
            metavar="DIR",
            help="folders with finished runs of run_mlm.py and run_glue.py (default: the paper's Table 4 alone)",
        )
        plot.add_argument("--paper", action="store_true", help="draw the points of the paper's Table 4 too, hollow")
        if name == "scaling":
            plot.add_argument("--unigram", type=perplexity, metavar="X", help=unigram)
        plot.set_defaults(run=plot_scaling if name == "scaling" else plot_transfer, output=f"{name}.png")
    plot = plots.add_parser("training", help="loss curves of one or several runs")
    plot.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a training script")
    plot.add_argument("--unigram", type=perplexity, metavar="X", help=unigram)
    plot.set_defaults(run=plot_training, output="training.png")
    for plot in plots.choices.values():
        output = plot.get_default("output")
        plot.add_argument("--output", default=output, help="the picture to write (default: %(default)s)")

    command = commands.add_parser("table", help="print a table of the paper with our numbers")
    command.add_argument("number", type=int, help="1 to 10, as in the paper")
    command.add_argument(
        "--runs", nargs="+", default=[], metavar="DIR", help="fill in the results of the finished runs in these folders"
    )
    command.add_argument(
        "--recipes",
        metavar="DIR",
        help="recipes to hold Tables 7 to 9 against (default: the project's)",
    )
    command.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="default: %(default)s")
    command.add_argument("--output", metavar="FILE", help="a new file to write instead of printing")
    command.set_defaults(run=table)

    command = commands.add_parser("answer", help="answer questions from a text")
    command.add_argument("checkpoint", help="folder or name of a model that run_qa.py trained")
    command.add_argument("--question", nargs="+", required=True, help="one or several questions")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--context", help="the text that has the answers")
    source.add_argument("--context_file", help="a file with that text, of any length")
    command.add_argument("--top_k", type=int, default=1, help="answers to each question (default: %(default)s)")
    command.add_argument("--handle_impossible_answer", action="store_true", help="there may be no answer in the text")
    command.add_argument(
        "--null_score_diff_threshold",
        type=float,
        default=0.0,
        help="with it: say so if that scores higher by more than this (default: %(default)s)",
    )
    command.set_defaults(run=answer)

    command = commands.add_parser("serve", help="try a model in the browser; a causal one also by OpenAI's clients")
    command.add_argument("checkpoint", help="folder or name of a masked or causal language model or image classifier")
    command.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s)")
    command.add_argument("--port", type=int, default=8000, help="0 takes a free one (default: %(default)s)")
    command.set_defaults(run=serve)

    command = commands.add_parser("convert", help="convert weights of other projects, or weights for timm")
    sources = command.add_subparsers(title="conversions", metavar="CONVERSION", dest="conversion", required=True)
    timm = sources.add_parser("timm", help="a gMLP of timm -> image classifier")
    timm.add_argument("source", help="name of a model of timm, whose weights it downloads, or a file of weights")
    timm.add_argument("--image_size", nargs=2, type=int, metavar=("H", "W"), help="pixels, of images not square")
    lucidrains = sources.add_parser("lucidrains", help="a gMLP of g-mlp-pytorch -> masked language model")
    lucidrains.add_argument("source", help="file of weights")
    lucidrains.add_argument("--causal", action="store_true", help="it was made with causal=True, which no file tells")
    labml = sources.add_parser("labml", help="an autoregressive gMLP of labml_nn -> masked language model")
    labml.add_argument("source", help="file of weights")
    labml.add_argument("--drop_positions", action="store_true", help="go on without its position encodings")
    for source in (timm, lucidrains, labml):
        source.add_argument("out", help="folder to write: config, weights, code, card (timm: image processor)")
        source.add_argument("--license", help="identifier of the license of the weights, for the card")
    back = sources.add_parser("to-timm", help='image classifier with pooling="mean" -> file of weights for timm')
    back.add_argument("checkpoint", help="folder or name of the model")
    back.add_argument("out", help="file to write, .safetensors or .pth")
    command.set_defaults(run=convert)

    command = commands.add_parser("export", help="export a model to ONNX, OpenVINO, ExecuTorch or AOTInductor")
    command.add_argument("checkpoint", help="folder or name of the model")
    command.add_argument("out", help="a new folder, or the folder of the checkpoint, which gets a sub-folder")
    command.add_argument("--to", required=True, choices=("onnx", "openvino", "executorch", "aoti"))
    command.add_argument("--task", help="fill-mask, feature-extraction, ... (default: what the model was saved as)")
    command.add_argument("--int8", action="store_true", help="with --to onnx: write a model with weights of 8 bits too")
    command.add_argument("--push_to_hub", metavar="NAME", help="upload the export to this repository")
    command.set_defaults(run=export)

    arguments = parser.parse_args(argv)
    errors.run(lambda: arguments.run(arguments))


def run(arguments: argparse.Namespace):
    """Runs a training script."""
    # Its help, and the model card, show it.
    sys.argv = [f"hf-gmlp run {arguments.script}", *arguments.words]
    importlib.import_module(f".scripts.{arguments.script}", __package__).main()


def recipes(arguments: argparse.Namespace):
    """Lists the recipes, each with the first line of what it says of itself."""
    from .training.recipes import RECIPES

    lines = []
    for path in sorted(RECIPES.rglob("*.yaml"), key=lambda path: (len(path.parts), path)):
        about = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        name = f"recipes/{path.relative_to(RECIPES).as_posix()}"
        lines.append(f"{name:<45} {textwrap.shorten(about, 74, placeholder=' ...')}")
    print(*lines, f"\nfolder: {RECIPES}", sep="\n")


def presets(arguments: argparse.Namespace):
    """Lists the presets, shows one, or exports one."""
    from transformers import AutoConfig, PreTrainedConfig

    from .presets import PRESETS, preset_path

    def attention_of(config: PreTrainedConfig) -> str:
        """The width of the tiny attention, "full" for that of a Transformer, "-" for none."""
        if hasattr(config, "attention_size"):
            return str(config.attention_size or "-")
        return "full" if getattr(config, "content_attention", config.model_type in ("bert", "vit")) else "-"

    def tokens_of(config: PreTrainedConfig) -> int:
        """n, with the [CLS] token of a ViT."""
        if config.model_type == "vit":
            return (config.image_size // config.patch_size) ** 2 + 1
        return config.max_position_embeddings

    if arguments.name is not None and arguments.name not in PRESETS:
        raise InputError(f"There is no preset {arguments.name!r}. Choose one of: {', '.join(PRESETS)}.")
    if arguments.export is not None:
        if arguments.name is None:
            raise InputError("Say which preset to export: hf-gmlp presets NAME --export DIR.")
        if Path(arguments.export).exists():
            raise InputError(f"{arguments.export} exists already; choose a new folder.")
        config = AutoConfig.from_pretrained(preset_path(arguments.name))
        config.save_pretrained(arguments.export)
        code = " with --trust_remote_code" if hasattr(config, "auto_map") else ""
        print(f"{arguments.name} is in {arguments.export}: use it as --config_name{code}.")
        return

    header = f"{'name':<25}{'paper':<15}{'L':>4}{'d_model':>8}{'d_ffn':>6}{'n':>5}{'attn':>5}{'params':>9}{'FLOPs':>10}"
    counted = f"{'counted':>10}{'counted':>11}" if arguments.count else ""
    print(header + counted)
    for preset in PRESETS.values() if arguments.name is None else [PRESETS[arguments.name]]:
        config = AutoConfig.from_pretrained(preset_path(preset.name), num_labels=1000)
        flops = f"{preset.flops:.1f} B" if preset.flops else "-"
        line = (
            f"{preset.name:<25}{preset.paper:<15}{config.num_hidden_layers:>4}{config.hidden_size:>8}"
            f"{config.intermediate_size:>6}{tokens_of(config):>5}{attention_of(config):>5}"
            f"{preset.parameters:>7g} M{flops:>10}"
        )
        if arguments.count:
            from .analysis.counts import paper_flops, paper_parameters

            line += f"{paper_parameters(config) / 1e6:>8.2f} M{paper_flops(config) / 1e9:>9.1f} B"
        print(line)
    if arguments.name is not None:
        preset = PRESETS[arguments.name]
        print(f"\n{preset.note}\n" if preset.note else "")
        print((preset_path(arguments.name) / "config.json").read_text(encoding="utf-8").strip())
        print(f"\nfolder: {preset_path(arguments.name)}")
    else:
        print(
            "\nparams and FLOPs (of one forward pass) as the paper prints them; --count adds those of the models here."
        )


def quiet():
    """Keeps from the screen what transformers says of heads that are not loaded, and its progress bars."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def perplexity(word: str) -> float:
    """A number from the command line that can be a perplexity."""
    if not 1 < float(word) < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is no perplexity: it is a number above 1")
    return float(word)


def plot_filters(arguments: argparse.Namespace):
    """Draws the spatial filters of a checkpoint."""
    from .analysis.filters import load_spatial_model, plot_filters

    quiet()
    plot_filters(load_spatial_model(arguments.checkpoint), arguments.output, max_layers=arguments.max_layers)
    print(f"The spatial filters of {arguments.checkpoint} are in {arguments.output}.")


def plot_matrices(arguments: argparse.Namespace):
    """Draws the spatial matrices of a checkpoint, and prints how Toeplitz each is."""
    from .analysis.filters import load_spatial_model
    from .analysis.toeplitz import plot_matrices

    quiet()
    model = load_spatial_model(arguments.checkpoint)
    shares, chance = plot_matrices(model, arguments.output, max_layers=arguments.max_layers)
    for block, share in enumerate(shares, start=1):
        print(f"block {block:>3}  {share:.4f}")
    if model.config.toeplitz:
        print("The model has the Toeplitz prior: these are 1 by construction.")
    print(f"mean {sum(shares) / len(shares):.4f}, of random weights {chance:.4f}")
    print(f"The spatial matrices of {arguments.checkpoint} are in {arguments.output}.")


def plot_attention(arguments: argparse.Namespace):
    """Draws what the tiny attention of a checkpoint looks at."""
    from .analysis.attention import load_attentive_model, plot_attention

    if len(arguments.sentences) > 2:
        raise InputError(f"Give one sentence or two, each in quotation marks; here are {len(arguments.sentences)}.")
    first, second = [*arguments.sentences, None][:2]
    quiet()
    model, tokenizer = load_attentive_model(arguments.checkpoint)
    plot_attention(model, tokenizer, first, second, arguments.output)
    print(f"The attention of {arguments.checkpoint} is in {arguments.output}.")


def plot_capacity(arguments: argparse.Namespace):
    """Draws image accuracy against parameters: the paper's, and that of finished runs."""
    from .analysis.runs import find_runs
    from .analysis.scaling import plot_capacity

    plot_capacity(arguments.output, find_runs(arguments.runs) if arguments.runs else None)
    print(f"Accuracy against capacity is in {arguments.output}.")


def plot_scaling(arguments: argparse.Namespace):
    """Draws quality against parameters, and prints the power laws."""
    from .analysis.runs import find_runs
    from .analysis.scaling import plot_scaling

    runs = find_runs(arguments.runs) if arguments.runs else None
    fits = plot_scaling(arguments.output, runs, paper=arguments.paper, unigram=arguments.unigram)
    for name, fit in fits.items():
        print(f"{name}: perplexity ~ parameters^({fit.exponent:.3f} ± {fit.error:.3f}), from {fit.points} sizes")
    print(f"The scaling of perplexity and accuracies is in {arguments.output}.")


def plot_transfer(arguments: argparse.Namespace):
    """Draws accuracy after fine-tuning against perplexity after pretraining."""
    from .analysis.runs import find_runs
    from .analysis.scaling import plot_transfer

    plot_transfer(arguments.output, find_runs(arguments.runs) if arguments.runs else None, paper=arguments.paper)
    print(f"The transfer from pretraining to fine-tuning is in {arguments.output}.")


def plot_training(arguments: argparse.Namespace):
    """Draws the loss curves of some runs."""
    from .analysis.curves import plot_training

    plot_training(arguments.runs, arguments.output, unigram=arguments.unigram)
    print(f"The loss curves are in {arguments.output}.")


def table(arguments: argparse.Namespace):
    """Prints a table of the paper with this project's numbers, or writes it into a file."""
    if arguments.output is not None and Path(arguments.output).exists():
        raise InputError(f"{arguments.output} exists already; choose a new file.")
    if arguments.output is not None and not Path(arguments.output).resolve().parent.is_dir():
        raise InputError(f"There is no folder {Path(arguments.output).resolve().parent} to write the table to.")
    from .analysis.tables import table

    text = table(arguments.number, arguments.runs, arguments.recipes, arguments.format)
    if arguments.output is None:
        print(text, end="")
        return
    Path(arguments.output).write_text(text, encoding="utf-8")
    print(f"Table {arguments.number} is in {arguments.output}.")


def answer(arguments: argparse.Namespace):
    """Answers questions from a text: under each question its answers, with their scores and places in the text."""
    context = arguments.context
    if arguments.context_file is not None:
        try:
            context = Path(arguments.context_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{arguments.context_file} cannot be read as text: {error}") from error
    if arguments.top_k < 1:
        raise InputError(f"--top_k must be at least 1, got {arguments.top_k}.")
    if not context.strip():
        raise InputError("The text is empty: there is nothing to find an answer in.")
    from .answerer import QuestionAnswerer

    answers = QuestionAnswerer(arguments.checkpoint)(
        arguments.question,
        context,
        # Several, so that one is a list too.
        top_k=max(2, arguments.top_k),
        handle_impossible_answer=arguments.handle_impossible_answer,
        null_score_diff_threshold=arguments.null_score_diff_threshold,
    )
    for question, ranked in zip(arguments.question, answers):
        print(question)
        for one in ranked[: arguments.top_k]:
            found = f"{one['answer']}  (characters {one['start']}-{one['end']})" if one["answer"] else "(no answer)"
            print(f"  {one['score']:.4f}  {found}")


def serve(arguments: argparse.Namespace):
    """Serves a model until Ctrl-C."""
    from transformers.utils.import_utils import is_serve_available

    if not is_serve_available():
        raise InputError('Serving takes fastapi, uvicorn and openai: pip install "hf-gmlp[serve]".')
    from .serve import serve

    quiet()
    serve(arguments.checkpoint, arguments.host, arguments.port)


def convert(arguments: argparse.Namespace):
    """Converts a checkpoint of another project, or a checkpoint into weights for timm."""
    options = vars(arguments).copy()
    del options["run"]
    name = options.pop("conversion").replace("-", "_")
    # Of each project only what its own conversion needs.
    module = importlib.import_module(f".conversion.{name.removeprefix('to_')}", __package__)
    print(*getattr(module, f"convert_{name}")(**options), sep="\n")


def export(arguments: argparse.Namespace):
    """Exports a checkpoint for another runtime."""
    try:
        from .export import export
    except ImportError as error:
        raise InputError(f"Exports need transformers 5.23 or newer, whose exporters do them ({error}).") from error

    quiet()
    options = vars(arguments).copy()
    del options["run"]
    print(*export(**options), sep="\n")


if __name__ == "__main__":
    main()
