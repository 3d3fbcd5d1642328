"""The command `hf-gmlp`: what is not training."""

import argparse
from pathlib import Path

from . import errors
from ._version import __version__
from .errors import InputError


def main(argv: list[str] | None = None):
    """Runs `hf-gmlp` with the given words, or with those of the command line."""
    parser = argparse.ArgumentParser(
        prog="hf-gmlp",
        description="gMLP and aMLP for Hugging Face Transformers: what is not training.",
        epilog="To train, use the run_*.py scripts.",
    )
    parser.add_argument("--version", action="version", version=f"hf-gmlp {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

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
    plot = plots.add_parser("filters", help="spatial filters of every block (paper, Figure 4)")
    plot.add_argument("checkpoint", help="folder or name of a trained model")
    plot.add_argument("--output", default="filters.png", help="the picture to write (default: %(default)s)")
    plot.set_defaults(run=plot_filters)
    plot = plots.add_parser("training", help="loss curves of one or several runs")
    plot.add_argument("runs", nargs="+", metavar="RUN", help="output folder of a training script")
    plot.add_argument("--output", default="training.png", help="the picture to write (default: %(default)s)")
    plot.set_defaults(run=plot_training)

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

    arguments = parser.parse_args(argv)
    errors.run(lambda: arguments.run(arguments))


def presets(arguments: argparse.Namespace):
    """Lists the presets, shows one, or exports one."""
    from transformers import AutoConfig, PreTrainedConfig

    from .presets import PRESETS, preset_path

    def attention_of(config: PreTrainedConfig) -> str:
        """The width of the tiny attention, "full" for that of a Transformer, "-" for none."""
        if hasattr(config, "attention_size"):
            return str(config.attention_size or "-")
        return "full" if getattr(config, "content_attention", config.model_type == "bert") else "-"

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
            f"{config.intermediate_size:>6}{config.max_position_embeddings:>5}{attention_of(config):>5}"
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
        print("\nparams and FLOPs (of one forward pass) as the paper prints them; --count counts ours beside them.")


def plot_filters(arguments: argparse.Namespace):
    """Draws the spatial filters of a checkpoint."""
    from .analysis.filters import load_spatial_model, plot_filters

    plot_filters(load_spatial_model(arguments.checkpoint), arguments.output)
    print(f"The spatial filters of {arguments.checkpoint} are in {arguments.output}.")


def plot_training(arguments: argparse.Namespace):
    """Draws the loss curves of some runs."""
    from .analysis.curves import plot_training

    plot_training(arguments.runs, arguments.output)
    print(f"The loss curves are in {arguments.output}.")


def answer(arguments: argparse.Namespace):
    """Answers questions from a text: under each question its answers, with their scores and places in the text."""
    context = arguments.context
    if arguments.context_file is not None:
        try:
            context = Path(arguments.context_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{arguments.context_file} cannot be read as text: {error}") from error
    if not context.strip():
        raise InputError("The text is empty: there is nothing to find an answer in.")
    from .qa import QuestionAnswerer

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


if __name__ == "__main__":
    main()
